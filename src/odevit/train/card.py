"""README.md of a run: what it is, how it was made, what it costs, where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEMPLATE = """---
library_name: odevit
pipeline_tag: image-classification
tags: [{tags}]
model-index:
- name: {name}
  results:
  - task: {{type: image-classification}}
    dataset: {{name: "{data}", type: "{data}"}}
    metrics:
    - {{type: accuracy, value: {top1:.4f}}}
---

# {name}

{about} Made with odevit {version}, an independent implementation of ODE-ViT (arXiv 2511.16501).

{table}

![learning curves](curves.png)

## Use

```python
{code}
```

## Limits

{limits}
- The numbers are of one seed, {seed}. The test split was read once, after training.

The whole recipe is in `recipe.yaml`, every logged number in `metrics.jsonl`.
"""

PIPELINE = """import odevit
from transformers import pipeline

classify = pipeline("image-classification", "{folder}")
classify("image.png")"""


@dataclass(frozen=True)
class Card:
    """The parts in which one model card differs from another.

    Args:
        about: what the model is, in a sentence or two.
        rows: of the table of facts; the first one is its head.
        limits: what it cannot do, one sentence each.
        code: how to use it.
        tags: beside those that all models of odevit have.
    """

    about: str
    rows: Sequence[Sequence[str]]
    limits: Sequence[str]
    code: str = PIPELINE
    tags: Sequence[str] = field(default=())


def write_card(path: Path, card: Card, record: Mapping[str, Any]) -> None:
    """Write a model card from its parts and the record of the run."""
    head, *body = ["| " + " | ".join(row) + " |" for row in card.rows]
    rule = "|" + "---|" * len(card.rows[0])
    text = TEMPLATE.format(
        name=record["name"],
        data=record["data"],
        top1=record["top1"],
        version=record["versions"]["odevit"],
        seed=record["seeds"][0]["seed"],
        tags=", ".join(["odevit", "continuous-depth", "vision-transformer", *card.tags]),
        about=card.about,
        table="\n".join([head, rule, *body]),
        code=card.code.format(folder=path.parent.name),
        limits="\n".join(f"- {limit}" for limit in card.limits),
    )
    path.write_text(text)
