"""x_{l+1} = layer_l(x_l): depth as a number of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from odevit.core.depth import Depth, refuse
from odevit.core.loop import Recompute
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solve import Equation, solve
from odevit.core.solver import Solver
from odevit.core.solver_config import SolverConfig
from odevit.solvers.early_exit import Stop
from odevit.solvers.penalties import Penalty
from odevit.tokens import AttentionMap, Logits, Tokens


class LayeredDepth(Depth):
    """x_{l+1} = layer_l(x_l), l = 1, ..., L: no equation, so that neither solver nor horizon mean anything.

    A subclass walks through its layers with a `Walk`, which keeps what was asked for.
    """

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        given = {"solver": solver, "steps": steps, "horizon": horizon}
        refuse(self.subject, [self.refusal(name, value) for name, value in given.items() if value is not None])
        return None

    def recorder(
        self,
        x0: Tokens,
        layers: int,
        solver_config: SolverConfig | None = None,
        *,
        save: SaveAt | str | Iterable[int] | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        adjoint: bool = False,
        stop: str | Stop | None = None,
        read: Callable[[Tokens], Logits] | None = None,
    ) -> LayerRecorder:
        """A walk through so many layers, with the options of `forward`; what layers cannot do is refused."""
        given = {"way": solver_config, "adjoint": adjoint or None, "stop": stop}
        problems = [self.refusal(name, value) for name, value in given.items() if value is not None]
        problems += [
            f"the penalty {name!r} asks where a field comes to rest, which layers have no way of doing; leave it out"
            for name, penalty in (penalties or {}).items()
            if penalty.is_terminal()
        ]
        refuse(self.subject, problems)
        return LayerRecorder(x0, layers, SaveAt.parse(save), penalties or {}, self.recompute)

    @property
    def subject(self) -> str:
        """What it is called in an error."""
        return f"depth={type(self).__name__}"

    def refusal(self, name: str, value: object) -> str:
        """The sentence for an option of an equation."""
        return f"{name}={value!r} was given, but {self.describe()} are no equation; leave it out"


class RepeatedDepth(LayeredDepth):
    """x_{n+1} = layer(x_n), n < N: the same layers again and again, N times `steps`, which any call may change."""

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        super().resolve(solver, None, horizon)
        return None if steps is None else self.solver_config.replace(steps=steps)

    def repetitions(self, solver_config: SolverConfig | None) -> int:
        """N of a way, of which nothing else means anything; its own unless one is given."""
        if solver_config is None:
            return self.solver_config.steps
        if solver_config != self.solver_config.replace(steps=solver_config.steps):
            refuse(
                self.subject,
                [
                    f"{self.refusal('way', str(solver_config)).removesuffix('leave it out')}pass steps={solver_config.steps}"
                ],
            )
        return solver_config.steps


class LayerRecorder:
    """The states, maps and costs of a walk through layers, kept as they come.

    Args:
        x0: the embedded image.
        layers: how many there will be; penalties are means over them.
        keep: what is asked for; a state has the number of the layer that made it.
        penalties: what a layer costs, by name.
        checkpoint: whether layers are computed again in the backward pass, or how.
    """

    def __init__(
        self, x0: Tokens, layers: int, keep: SaveAt, penalties: Mapping[str, Penalty], checkpoint: Recompute = False
    ) -> None:
        self.layers, self.keep, self.penalties, self.checkpoint = layers, keep, penalties, checkpoint
        self.chosen = keep.chosen(layers)
        self.states = [x0] if 0 in self.chosen else []
        self.attentions: list[AttentionMap] = []
        self.totals = {name: x0.new_zeros(()) for name in penalties}
        self.nfe = 0

    def run_layer(
        self, field: Equation, x: Tokens, solver_config: SolverConfig | None = None, shares: float | None = None
    ) -> Tokens:
        """The end of one layer: of a step of its field, x' = y + F(y), y = x + G(x), unless it goes another way.

        `shares` is how many such calls the penalties are a mean of, where a layer is not one of them. A layer that is
        gone through again comes as its dynamics, whose dropout masks stay the same.
        """
        solver_config = solver_config or BLOCK
        block = solve(
            field,
            x,
            solver=solver_config.method,
            steps=solver_config.steps,
            t1=solver_config.horizon,
            save=SaveAt(attentions=self.keep.attentions, detach=self.keep.detach),
            penalties=self.penalties,
            checkpoint=self.checkpoint,
        )
        self.attentions.extend(block.attentions)
        for name, cost in block.penalties.items():
            self.totals[name] = self.totals[name] + cost / (shares or self.layers)
        self.nfe += block.stats.nfe
        return block.state

    def record(self, number: int, x: Tokens) -> Tokens:
        """Keep the state after layer `number`, if it was asked for; give it back."""
        if number in self.chosen:
            self.states.append(x)
        return x

    def solution(self, x: Tokens, **further: Any) -> Solution:
        """The end of the walk, with what was kept on it."""
        return Solution(
            state=x,
            time=float(self.layers),
            stats=Stats(nfe=self.nfe, steps=self.layers),
            states=self.keep.kept(self.states),
            times=tuple(float(number) for number in sorted(self.chosen)),
            attentions=tuple(self.attentions),
            penalties=self.totals,
            **further,
        )


BLOCK = SolverConfig("lie_trotter", 1, 1.0)
"""A pre-norm block, attention and then the MLP: one Lie-Trotter step of length 1."""
