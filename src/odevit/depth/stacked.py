"""x_{l+1} = x_l + F_l(x_l + G_l(x_l)): the ordinary Vision Transformer."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from odevit.depth.base import AS_CONFIGURED, DEPTHS, Depth, Integration
from odevit.errors import ConfigError
from odevit.field.dynamics import Field
from odevit.shapes import AttentionMap, Tokens
from odevit.solver import Save, Solution, Stats, solve


@DEPTHS.register("stacked")
class StackedDepth(Depth):
    """x_{l+1} = y + F_l(y), y = x_l + G_l(x_l): `steps` pre-norm blocks, each with weights of its own.

    The baseline of the paper's Table 2. A block is one Lie-Trotter step of length 1 of its own field, so everything
    that holds of fields (attention, norms, dropout) holds here; solver and horizon have no meaning.
    """

    def __init__(self, make_field: Callable[[], Field], *, solver: str, steps: int, horizon: float) -> None:
        super().__init__(make_field, solver=solver, steps=steps, horizon=horizon)
        self.layers = nn.ModuleList(make_field() for _ in range(steps))

    def forward(self, x0: Tokens, how: Integration = AS_CONFIGURED) -> Solution:
        given: dict[str, object] = {
            "solver": how.solver,
            "steps": how.steps,
            "horizon": how.horizon,
            "adjoint": how.adjoint or None,
            "stop": how.stop,
        }
        problems = [
            f"{name}={value!r} was given, but {self.steps} untied layers are no equation to integrate; leave it out"
            for name, value in given.items()
            if value is not None
        ]
        if problems:
            raise ConfigError("a stacked depth", problems)
        keep = Save.parse(how.save)
        chosen = keep.chosen(self.steps)

        x = x0
        states: list[Tokens] = [x0] if 0 in chosen else []
        attentions: list[AttentionMap] = []
        totals = {name: x0.new_zeros(()) for name in how.penalties or {}}
        for number, layer in enumerate(self.layers, start=1):
            block = solve(
                layer,
                x,
                solver="lie_trotter",
                steps=1,
                save=Save(attentions=keep.attentions),
                penalties=how.penalties,
                checkpoint=self.gradient_checkpointing and self.training,
            )
            x = block.state
            attentions.extend(block.attentions)
            totals = {name: total + block.penalties[name] / self.steps for name, total in totals.items()}
            if number in chosen:
                states.append(x)
        return Solution(
            state=x,
            time=float(self.steps),
            stats=Stats(nfe=self.steps, steps=self.steps),
            states=tuple(state.detach() for state in states) if keep.detach else tuple(states),
            times=tuple(float(n) for n in sorted(chosen)),
            attentions=tuple(each.detach() for each in attentions) if keep.detach else tuple(attentions),
            penalties=totals,
        )
