"""x_{l+1} = x_l + F_l(x_l + G_l(x_l)): the ordinary Vision Transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from odevit.depth.meaning import DEPTHS, Depth, refuse
from odevit.field.dynamics import Field
from odevit.solver import Save, Solution, Solver, Stats, Way, solve
from odevit.tokens import AttentionMap, Tokens


@DEPTHS.register("stacked")
class StackedDepth(Depth):
    """x_{l+1} = y + F_l(y), y = x_l + G_l(x_l): `steps` pre-norm blocks, each with weights of its own.

    The baseline of the paper's Table 2. A block is one Lie-Trotter step of length 1 of its own field, so everything
    that holds of fields (attention, norms, dropout) holds here; solver and horizon have no meaning.
    """

    def __init__(self, make_field: Callable[[], Field], way: Way) -> None:
        super().__init__(make_field, way)
        self.layers = nn.ModuleList(make_field() for _ in range(way.steps))

    def choose(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> Way | None:
        given = {"solver": solver, "steps": steps, "horizon": horizon}
        refuse("a stacked depth", [self._refusal(name, value) for name, value in given.items() if value is not None])
        return None

    def forward(self, x0: Tokens, way: Way | None = None, **options: Any) -> Solution:
        penalties = options.get("penalties") or {}
        given = {"way": way, "adjoint": options.get("adjoint") or None, "stop": options.get("stop")}
        problems = [self._refusal(name, value) for name, value in given.items() if value is not None]
        problems += [
            f"the penalty {name!r} asks where a field comes to rest, which a stack has no way of doing; leave it out"
            for name, penalty in penalties.items()
            if penalty.is_terminal()
        ]
        refuse("a stacked depth", problems)
        keep, layers = Save.parse(options.get("save")), len(self.layers)
        chosen = keep.chosen(layers)

        x, states = x0, [x0] if 0 in chosen else []
        attentions: list[AttentionMap] = []
        totals = {name: x0.new_zeros(()) for name in penalties}
        for number, layer in enumerate(self.layers, start=1):
            block = solve(
                layer,
                x,
                solver="lie_trotter",
                steps=1,
                save=Save(attentions=keep.attentions, detach=keep.detach),
                penalties=penalties,
                checkpoint=self.gradient_checkpointing and self.training,
            )
            x = block.state
            attentions.extend(block.attentions)
            totals = {name: total + block.penalties[name] / layers for name, total in totals.items()}
            if number in chosen:
                states.append(x)
        return Solution(
            state=x,
            time=float(layers),
            stats=Stats(nfe=layers, steps=layers),
            states=keep.kept(states),
            times=tuple(float(number) for number in sorted(chosen)),
            attentions=tuple(attentions),
            penalties=totals,
        )

    def describe(self) -> str:
        return f"{len(self.layers)} untied layers"

    def _refusal(self, name: str, value: object) -> str:
        return f"{name}={value!r} was given, but {len(self.layers)} untied layers are no equation; leave it out"
