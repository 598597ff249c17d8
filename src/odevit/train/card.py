"""README.md of a run: what it is, how it was made, what it costs, where it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = """---
library_name: odevit
pipeline_tag: image-classification
tags: [odevit, continuous-depth, vision-transformer]
model-index:
- name: {name}
  results:
  - task: {{type: image-classification}}
    dataset: {{name: "{data}", type: "{data}"}}
    metrics:
    - {{type: accuracy, value: {top1:.4f}}}
---

# {name}

A Vision Transformer of continuous depth: {equation}, integrated by `{solver}` in {steps} steps over a horizon of
{horizon:g}. Made with odevit {version}, an independent implementation of ODE-ViT (arXiv 2511.16501).

| | |
|---|---|
| data | {data}, {classes} classes, {image_size} px |
| parameters | {params:,} |
| field evaluations (NFE) | {nfe} |
| time for an image | {milliseconds:.3f} ms in batches of {eval_batch}, on {device} |
| test accuracy | top-1 {top1:.2%}, top-3 {top3:.2%}, top-5 {top5:.2%} (seed {seed}, one run) |
| validation accuracy | {validation:.2%}, the model was selected on it |
| training | {epochs} epochs, {seconds:.0f} s on {device} |

![learning curves](curves.png)

## Use

```python
import odevit
from transformers import pipeline

classify = pipeline("image-classification", "{folder}")
classify("image.png")
```

`model(pixel_values, solver="rk4", steps=24)` integrates the same weights in another way.

## Limits

- An ODE of {steps} steps costs {nfe} evaluations of its field: it has fewer parameters than a stack of layers,
  not fewer operations.
- Trained on {data} only, at {image_size} px; other images are out of its world, and it does not say so.
- The numbers are of one seed. The test split was read once, after training.

The whole recipe is in `recipe.yaml`, every logged number in `metrics.jsonl`.
"""


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """Write the model card."""
    (folder / "README.md").write_text(TEMPLATE.format(folder=folder.name, **facts))
