"""README.md of a distilled student: whom it follows, how nearly, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odevit.distill.student import OdeStudent

TEMPLATE = """---
library_name: odevit
pipeline_tag: image-classification
tags: [odevit, continuous-depth, vision-transformer, distillation]
---

# {name}

A {architecture} whose {layers} blocks were replaced by one equation, integrated by `{solver}` in {steps} steps, and
trained to follow its teacher's own hidden states{labels}. Embedding, final norm and head are the teacher's,
frozen. Made with odevit {version}.

| | student | teacher |
|---|---|---|
| parameters | {params:,} | {teacher_params:,} |
| evaluations (NFE, or layers) | {nfe} | {teacher_nfe} |
| time for an image, on {device} | {milliseconds:.3f} ms | {teacher_milliseconds:.3f} ms |
| test top-1 on {data} (seed {seed}, one run) | {top1:.2%} | {teacher_top1:.2%} |
| agreement with the teacher | {agreement:.2%} | |

![learning curves](curves.png)

```python
from odevit import OdeStudent

student = OdeStudent.from_pretrained("{folder}")
output = student(pixel_values, steps={steps})
```

The student has fewer parameters than its teacher, not fewer operations. It was selected on held-out images by agreement
with its teacher; the test split was read once. The recipe is in `recipe.yaml`, which step meets which layer in
`alignment.json`; `report.html` shows how nearly it follows.
"""


def write_card(folder: Path, student: OdeStudent, record: dict[str, Any], supervised: bool) -> None:
    """Write the model card of a student."""
    teacher = record["teacher"]
    facts = {
        **record,
        "folder": folder.name,
        "architecture": type(student.model).__name__,
        "layers": teacher["nfe"],
        "solver": student.config.solver,
        "steps": student.config.steps,
        "labels": "" if supervised else ", without labels",
        "version": record["versions"]["odevit"],
        "seed": record["seeds"][0]["seed"],
        "teacher_params": teacher["params"],
        "teacher_nfe": teacher["nfe"],
        "teacher_milliseconds": teacher["milliseconds"],
    }
    (folder / "README.md").write_text(TEMPLATE.format(**facts))
