"""x_{l+1} = layer_l(x_l): depth as a number of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odevit.core.base import Depth, Request, Solver
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solve import Equation, Recompute, solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import refuse
from odevit.solvers.penalties import Penalty
from odevit.tokens import AttentionMap, Tokens


class LayeredDepth(Depth):
    """x_{l+1} = layer_l(x_l), l = 1, ..., L: no equation, so that neither solver nor horizon mean anything.

    A subclass runs its layers with a `LayerRecorder`, which keeps what a call asks for.
    """

    keeps_states = True

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        given = {"solver": solver, "steps": steps, "horizon": horizon}
        refuse(self.subject, [self.refusal(name, value) for name, value in given.items() if value is not None])
        return None

    def recorder(self, x0: Tokens, layers: int, request: Request) -> LayerRecorder:
        """Records what a call asks for while it runs so many layers; options of an equation are refused."""
        given = {"solver_config": request.solver_config, "adjoint": request.adjoint or None, "stop": request.stop}
        problems = [self.refusal(name, value) for name, value in given.items() if value is not None]
        problems += [
            f"the penalty {name!r} asks where a field comes to rest, which layers have no way of doing; leave it out"
            for name, penalty in (request.penalties or {}).items()
            if penalty.is_terminal()
        ]
        refuse(self.subject, problems)
        return LayerRecorder(x0, layers, SaveAt.parse(request.save), request.penalties or {}, self.recompute)

    @property
    def subject(self) -> str:
        """What it is called in an error."""
        return f"depth={type(self).__name__}"

    def refusal(self, name: str, value: object) -> str:
        """The sentence that refuses an option of an equation."""
        return f"{name}={value!r} was given, but {self.describe()} are no equation; leave it out"


class RepeatedDepth(LayeredDepth):
    """x_{n+1} = layer(x_n), n < N: the same layers again and again, N times `steps`, which any call may change."""

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        super().resolve(solver, None, horizon)
        return None if steps is None else self.solver_config.replace(steps=steps)

    def repetitions(self, solver_config: SolverConfig | None) -> int:
        """The `steps` of a call, the only part of a solver configuration that has a meaning here."""
        if solver_config is None:
            return self.solver_config.steps
        if solver_config != self.solver_config.replace(steps=solver_config.steps):
            refusal = self.refusal("solver_config", str(solver_config)).removesuffix("leave it out")
            refuse(self.subject, [f"{refusal}pass steps={solver_config.steps}"])
        return solver_config.steps


class LayerRecorder:
    """Runs layers one by one and keeps their states, attention maps and costs.

    Args:
        x0: the embedded image.
        layers: how many there are; penalties are means over them.
        keep: what to keep; a state has the number of its layer.
        penalties: the costs of a layer, by name.
        checkpoint: whether layers are computed again in the backward pass, or how.
    """

    def __init__(
        self, x0: Tokens, layers: int, keep: SaveAt, penalties: Mapping[str, Penalty], checkpoint: Recompute = False
    ) -> None:
        self.layers, self.keep, self.penalties, self.checkpoint = layers, keep, penalties, checkpoint
        self.chosen = keep.numbers(layers)
        self.states = [x0] if 0 in self.chosen else []
        self.attentions: list[AttentionMap] = []
        self.totals = {name: x0.new_zeros(()) for name in penalties}
        self.nfe = 0

    def run_layer(
        self, field: Equation, x: Tokens, solver_config: SolverConfig | None = None, shares: float | None = None
    ) -> Tokens:
        """The state after one layer: x' = y + F(y), y = x + G(x), unless `solver_config` says otherwise.

        `shares` is the number of such calls that penalties are means over, if it is not the number of layers. A layer
        that is run several times is passed as its dynamics, whose dropout masks stay the same.
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
        """Keep the state after layer `number`, if asked for; returns it."""
        if number in self.chosen:
            self.states.append(x)
        return x

    def solution(self, x: Tokens, **further: Any) -> Solution:
        """The solution, with everything that was kept."""
        return Solution(
            state=x,
            time=float(self.layers),
            stats=Stats(nfe=self.nfe, steps=self.layers),
            states=self.keep.detached(self.states),
            times=tuple(float(number) for number in sorted(self.chosen)),
            attentions=tuple(self.attentions),
            penalties=self.totals,
            **further,
        )


BLOCK = SolverConfig("lie_trotter", 1, 1.0)
"""A pre-norm block, attention and then the MLP: one Lie-Trotter step of length 1."""
