"""Accuracy of a ViT with only K of its L blocks, nothing trained.

    python -m benchmarks.fewer_layers OUT.json TEACHER DATA [keep=1,2,4,6,8,12] [images=10000] [cache=FOLDER]

The remaining blocks are evenly spaced, with the first and the last. Each row has parameters, top-1, and the share of
images with the same predicted class as the whole ViT.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from odevit.loading import load
from odevit.surgery.plain_vit import ViTWrapper
from odevit.surgery.vit_spec import inspect_vit
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device


def spread(blocks: int, kept: int) -> list[int]:
    """`kept` of the numbers 0..blocks-1, evenly, with the first and the last; one alone is the first."""
    return [round(n * (blocks - 1) / max(1, kept - 1)) for n in range(kept)]


@contextmanager
def keep_blocks(blocks: Sequence[nn.Module], kept: Sequence[int]) -> Iterator[None]:
    """A context in which the other blocks return their input."""
    removed = [block for number, block in enumerate(blocks) if number not in kept]
    hooks = [block.register_forward_hook(lambda module, given, made: like_output(made, given[0])) for block in removed]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def like_output(made: Any, state: Tensor) -> Any:
    """The state in the form of the block's output: a tensor, or the first of a tuple."""
    return (state, *made[1:]) if isinstance(made, tuple) else state


@torch.no_grad()
def main(out: str, teacher: str, data: str, *options: str) -> None:
    settings = dict(option.split("=", 1) for option in options)
    device = resolve_device("auto")
    vit = load(teacher).float().to(device).eval()
    if not isinstance(vit, ViTWrapper):
        sys.exit(f"{teacher} is a model of continuous depth; expected a ViT with blocks to remove")
    blocks = inspect_vit(vit.model).locator.blocks(vit.model)
    read = load_run_data(teacher, data, vit, settings.get("cache"))
    size = 500 if device.type == "cuda" else 50
    batches = evaluation_batches(read, "test", size, limit=int(settings.get("images", 10_000)), device=device)

    def answers() -> Tensor:
        return torch.cat([vit(batch["pixel_values"]).logits.argmax(-1) for batch in batches])

    labels, whole = torch.cat([batch["labels"] for batch in batches]), answers()
    counts = [int(count) for count in settings.get("keep", "1,2,4,6,8,12").split(",")]
    rows = []
    for count in (count for count in counts if count <= len(blocks)):
        kept = spread(len(blocks), count)
        with keep_blocks(blocks, kept):
            given = answers()
        gone = sum(p.numel() for number, block in enumerate(blocks) if number not in kept for p in block.parameters())
        right, same = ((given == other).double().mean().item() for other in (labels, whole))
        parameters = sum(p.numel() for p in vit.model.parameters()) - gone
        rows.append({"blocks": count, "kept": kept, "params": parameters, "top1": right, "agreement": same})
        print(f"{count:3d} of {len(blocks)} blocks  {parameters:11,}  top-1 {right:.2%}  agreement {same:.2%}")
    facts = {"teacher": Path(teacher).name, "data": read.name, "images": len(labels)}
    facts |= {"device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
