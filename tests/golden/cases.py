"""logits, gradients and costs of small models in double precision: every solver, several step counts, grids and modes.

    python -m tests.golden.cases            # writes tests/golden/golden.json

The file was written before the loop was rewritten. The tests compare with it; write it again only for a change that is
meant to change numbers, and say so in the commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from odevit import OdeViTConfig, OdeViTForImageClassification

FILE = Path(__file__).with_name("golden.json")
FIXED = [
    "euler",
    "midpoint",
    "heun",
    "rk4",
    "lie_trotter",
    "strang",
    "exponential_euler",
    "exponential_heun",
    "ab2",
    "ab3",
    "etd_ab2",
    "etd_ab3",
]
ADAPTIVE = ("dopri5", "tsit5")
KINDS: dict[str, dict[str, Any]] = {
    "autonomous": {},
    "no leak": {"leak": 0.0},
    "linear": {"knots": 3},
    "pieces": {"knots": 3, "blend": "constant"},
    "vectors": {"knots": 2, "vector_knots": 4, "leak": 0.0, "fade": 0.4},
    "rank": {"knots": 3, "rank": 2},
    "network": {"weights_over_time": "network", "basis": 2},
    "time": {"time_conditioned": True},
}


def small_model(solver: str, steps: int = 12, **changes: Any) -> OdeViTForImageClassification:
    """A model of 16 channels and 5 tokens whose weights are the same whatever the initialisation does."""
    config = OdeViTConfig(
        hidden_size=16, num_attention_heads=2, image_size=8, patch_size=4, num_labels=3, solver=solver, steps=steps,
        horizon=3.0, **changes,
    )  # fmt: skip
    model = OdeViTForImageClassification(config).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters(), key=lambda pair: pair[0]):
            numbers = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            scale = 1 / math.sqrt(max(1, weight.flatten(1).shape[1])) if weight.ndim > 1 else 0.2
            weight.copy_(numbers * scale + (1.0 if name.endswith("norm.weight") else 0.0))
    return model.train(False)


def images() -> Tensor:
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(model: nn.Module, checkpointing: bool) -> list[float]:
    """The loss and the norms of a few gradients, the steps computed again in the backward pass or not."""
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    loss = model(images(), labels=torch.tensor([0, 2, 1])).loss
    loss.backward()
    norms = {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
    return [float(loss.detach()), *(norms[name] for name in sorted(norms) if "q_proj" in name or "positions" in name)]


def cases() -> Iterator[tuple[str, list[float]]]:
    """A name and its numbers."""
    for kind, changes in KINDS.items():
        for solver in FIXED:
            for steps in (7, 10, 12):
                with torch.no_grad():
                    output = small_model(solver, steps, **changes)(images())
                yield f"{kind}, {solver}, {steps}", [*output.logits.flatten().tolist(), float(output.stats.nfe)]
            with torch.no_grad():
                bent = small_model(solver, 10, **changes, grid="geometric:5")
                yield f"{kind}, {solver}, geometric", bent(images(), save=(3, 10)).logits.flatten().tolist()
                output = small_model(solver, 10, **changes)(images(), horizon=9.0, steps=30, stop="velocity:0.05")
                spent = [] if kind == "time" else output.trajectory.evaluations.tolist()
                yield f"{kind}, {solver}, stop", [*output.logits.flatten().tolist(), *map(float, spent)]
            yield f"{kind}, {solver}, gradients", gradients(small_model(solver, 7, **changes), False)
            yield f"{kind}, {solver}, checkpointed", gradients(small_model(solver, 7, **changes), True)
        for solver in ADAPTIVE:
            with torch.no_grad():
                output = small_model(solver, 4, **changes, tolerance=1e-3)(images(), save="all")
            yield f"{kind}, {solver}", [*output.logits.flatten().tolist(), float(output.stats.nfe)]
    from odevit.solvers.penalties import PENALTIES

    for checkpointing in (False, True):
        for solver in ("lie_trotter", "heun", "ab2"):
            model = small_model(solver, 7).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            output = model(
                images(), penalties={"jasmin": PENALTIES["jasmin"](k=2), "transport": PENALTIES["transport"]()}
            )
            cost = output.penalties["jasmin"] + output.penalties["transport"]
            cost.backward()
            grad = model.odevit.embedding.positions.grad
            yield (
                f"penalties, {solver}, {checkpointing}",
                [*(float(c.detach()) for c in output.penalties.values()), float(grad.norm())],
            )
    with torch.no_grad():
        maps = small_model("heun", 7)(images(), output_attentions=True).attentions
    yield "attention maps", [float(len(maps)), *(float(m.square().sum()) for m in maps)]


def main() -> None:
    torch.set_num_threads(1)
    FILE.write_text(json.dumps(dict(cases())).replace("], ", "],\n") + "\n")


if __name__ == "__main__":
    main()
