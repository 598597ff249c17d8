"""x_{l+1} = y + F(y), y = x_l + G(x_l): one block, repeated, optionally with a low-rank change per repetition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

from odevit.core.base import DEFAULT, DEPTHS, Component, Dynamics, Field, Request
from odevit.core.field import VectorField
from odevit.core.solution import Solution
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, Expected, integer, refuse
from odevit.systems.blocks import BLOCKS
from odevit.systems.layered import RepeatedDepth
from odevit.systems.residual import ResidualDepth
from odevit.time_varying.knot_schedule import KnotSchedule
from odevit.time_varying.knots import KnottedField
from odevit.time_varying.low_rank import LowRankChange
from odevit.tokens import Tokens

SHAREABLE = [name for name, kind in BLOCKS.items() if not kind.needs_own_field]


@DEPTHS.register("tied")
class TiedDepth(ResidualDepth, RepeatedDepth):
    """x_{l+1} = y + F(y), y = x_l + G(x_l): one pre-norm block, applied `steps` times.

    A Universal Transformer (Dehghani et al. 2018) without halting and without timing signals; the survey: "layer-wise
    shared parameters". With scaling="1/L" it is Euler's method, and more repetitions solve the same ODE more finely.

    With `rank`, W_l = W + A_l B_l and separate vectors d_l for each repetition: Relaxed Recursive Transformers (Bae et
    al. 2024: LoRA for each depth), MiniViT (Zhang et al. 2022: separate norms; its mixing of heads is not here), and
    with scaling="recursion" Raptor's time scale. Changes are initially 0. To initialise a student from the singular
    values of its teacher's blocks, call get_ode_model(vit, knots=12, blend="constant", rank=8); it has the same field,
    and student(x, depth="tied") repeats it.

    In a field whose weights depend on time, repetition l has the weights at the middle of its part of the horizon, from
    (l - 1) T/N to l T/N. A leak is applied after each step, over the length of the step.

    Args:
        block, scaling, scaling_value: as for `ResidualDepth`; `macaron` changes the field and is refused.
        rank: of A_l B_l on every projection; 0 changes vectors alone (norms, biases), None changes nothing.
    """

    subject = "a tied depth"
    shares_field = True
    rules: ClassVar[Mapping[str, Expected]] = {
        **ResidualDepth.rules,
        "block": Expected(f"one of {', '.join(SHAREABLE)}", lambda v: isinstance(v, str) and v in SHAREABLE),
        "rank": integer(0, optional=True),
    }

    def __init__(
        self,
        make_field: Callable[[], Field],
        solver_config: SolverConfig,
        *,
        block: str = "lie_trotter",
        scaling: str = "none",
        scaling_value: float | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(make_field, solver_config)
        field = make_field()
        self.relaxed = rank is not None
        if rank is not None:
            if not isinstance(field, VectorField):
                problem = f"rank={rank} was given, but the weights change with time already; leave one out"
                raise ConfigError(self.subject, [problem])
            steps, horizon = solver_config.steps, solver_config.horizon
            changes = [LowRankChange(field, rank) for _ in range(steps)]
            shared = KnotSchedule.of(1, horizon, "constant")
            field = KnottedField([field], shared, changes, KnotSchedule.of(steps, horizon, "constant"))
        (self.field,) = self.setup_blocks([field], block, scaling, scaling_value)

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        steps = self.repetitions(request.solver_config)
        edges = self.solver_config.replace(steps=steps).edges
        problems = self.field.grid_problems(edges)
        if self.scaling.is_learned and steps != self.solver_config.steps:
            problems.append(
                f"steps={steps} was given, but it has learned factors for {self.solver_config.steps} repetitions"
            )
        refuse(self.subject, problems)
        recorder, x = self.recorder(x0, steps, replace(request, solver_config=None)), x0
        dynamics = self.field.dynamics(x0)
        for number, (start, end) in enumerate(pairwise(edges), start=1):
            x = recorder.record(number, self.step(recorder, freeze_time(dynamics, start, end), x, number))
        return recorder.solution(x)

    @property
    def own_weights(self) -> list[str]:
        """Including the low-rank changes, which a field made from the configuration alone does not have."""
        return [*super().own_weights, *(["field.changes"] if self.relaxed else [])]

    def describe(self) -> str:
        relaxed = ", relaxed" if isinstance(self.field, KnottedField) else ""
        return f"{self.solver_config.steps} repetitions of one block{relaxed}{self.block_description}"


def freeze_time(dynamics: Dynamics, t0: float, t1: float) -> Dynamics:
    """The equation with its time fixed at (t0 + t1) / 2."""
    step, middle = dynamics.for_step(t0, t1), (t0 + t1) / 2

    def fixed(component: Component) -> Component:
        return lambda x, t, hook: component(x, middle, hook)

    # A plain Dynamics: that of a field with knots would look up its weights at the time of the step again.
    return Dynamics({name: fixed(component) for name, component in step.components.items()}, step.anchor, step.leak)
