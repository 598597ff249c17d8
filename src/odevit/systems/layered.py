"""x_{l+1} = layer_l(x_l): depth as a number of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from odevit.core.base import Depth, Request, Solver
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solve import Equation, Recompute, solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import refuse
from odevit.solvers.penalties import Penalty
from odevit.tokens import AttentionMap, Tokens


class LayeredDepth(Depth):
    """x_{l+1} = layer_l(x_l), l = 1, ..., L: there is no equation, and solver and horizon are not used.

    A subclass runs its layers with a `LayerRecorder`, which saves what a call asks for.
    """

    subject: ClassVar[str] = "a layered depth"
    """Its name in errors."""
    keeps_states = True

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        given = {"solver": solver, "steps": steps, "horizon": horizon}
        refuse(self.subject, [self.unused_option(name, value) for name, value in given.items() if value is not None])
        return None

    def recorder(self, x0: Tokens, layers: int, request: Request) -> LayerRecorder:
        """The recorder for a call that runs so many layers; options of an equation are refused."""
        given = {"solver_config": request.solver_config, "adjoint": request.adjoint or None, "stop": request.stop}
        problems = [self.unused_option(name, value) for name, value in given.items() if value is not None]
        problems += [
            f"the penalty {name!r} has a terminal cost, which needs an equation, and layers have none; leave it out"
            for name, penalty in (request.penalties or {}).items()
            if penalty.is_terminal()
        ]
        refuse(self.subject, problems)
        return LayerRecorder(x0, layers, SaveAt.parse(request.save), request.penalties or {}, self.recompute)

    def unused_option(self, name: str, value: object) -> str:
        """The error for an option that only an equation uses."""
        return f"{name}={value!r} was given, but {self.describe()} have no ODE solver; remove this option"


class RepeatedDepth(LayeredDepth):
    """x_{n+1} = layer(x_n), n < N: the same layers `steps` times; a call may change `steps`."""

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        super().resolve(solver, None, horizon)
        return None if steps is None else self.solver_config.replace(steps=steps)

    def repetitions(self, solver_config: SolverConfig | None) -> int:
        """The `steps` of a call, the only part of a solver configuration that is used here."""
        if solver_config is None:
            return self.solver_config.steps
        if solver_config != self.solver_config.replace(steps=solver_config.steps):
            problem = self.unused_option("solver_config", str(solver_config)).removesuffix("remove this option")
            refuse(self.subject, [f"{problem}pass steps={solver_config.steps}"])
        return solver_config.steps


class LayerRecorder:
    """Runs layers one by one and records states, attention maps and costs.

    Args:
        x0: the embedded image.
        layers: the number of layers; penalties are means over them.
        save: what to keep; the number of a state is that of its layer.
        penalties: the costs of a layer, by name.
        checkpoint: whether layers are recomputed in the backward pass, or torch's options for it.
    """

    def __init__(
        self, x0: Tokens, layers: int, save: SaveAt, penalties: Mapping[str, Penalty], checkpoint: Recompute = False
    ) -> None:
        self.layers, self.save, self.penalties, self.checkpoint = layers, save, penalties, checkpoint
        self.saved_numbers = save.numbers(layers)
        self.states = [x0] if 0 in self.saved_numbers else []
        self.attentions: list[AttentionMap] = []
        self.totals = {name: x0.new_zeros(()) for name in penalties}
        self.nfe = 0

    @property
    def is_recording(self) -> bool:
        """Whether states, attention maps or penalties were asked for, which need every sample at every layer."""
        return bool(self.saved_numbers or self.save.attentions or self.penalties)

    def run_layer(
        self, field: Equation, x: Tokens, solver_config: SolverConfig | None = None, runs: float | None = None
    ) -> Tokens:
        """The state after one layer: x' = y + F(y), y = x + G(x), unless `solver_config` is another step.

        Penalties are means over `runs` such calls, the number of layers unless given. Pass a layer that is run several
        times as its dynamics, so that its dropout masks stay the same.
        """
        solver_config = solver_config or BLOCK
        solution = solve(
            field,
            x,
            solver=solver_config.method,
            steps=solver_config.steps,
            t1=solver_config.horizon,
            save=SaveAt(attentions=self.save.attentions, detach=self.save.detach),
            penalties=self.penalties,
            checkpoint=self.checkpoint,
        )
        self.attentions.extend(solution.attentions)
        for name, cost in solution.penalties.items():
            self.totals[name] = self.totals[name] + cost / (runs or self.layers)
        self.nfe += solution.stats.nfe
        return solution.state

    def record(self, number: int, x: Tokens) -> Tokens:
        """x, the state after layer `number`, which is saved if it was asked for."""
        if number in self.saved_numbers:
            self.states.append(x)
        return x

    def solution(self, x: Tokens, **further: Any) -> Solution:
        """The solution, with everything that was recorded."""
        return Solution(
            state=x,
            time=float(self.layers),
            stats=Stats(nfe=self.nfe, steps=self.layers),
            states=self.save.detached(self.states),
            times=tuple(float(number) for number in sorted(self.saved_numbers)),
            attentions=tuple(self.attentions),
            penalties=self.totals,
            **further,
        )


BLOCK = SolverConfig("lie_trotter", 1, 1.0)
"""A pre-norm block, attention and then the MLP: one Lie-Trotter step of length 1."""
