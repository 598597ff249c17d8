"""x_{l+1} = y + F(y), y = x_l + G(x_l): depth as repetition of one block, which may relax a little every time."""

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

ABLE = [name for name, kind in BLOCKS.items() if not kind.needs_own_field]


@DEPTHS.register("tied")
class TiedDepth(ResidualDepth, RepeatedDepth):
    """x_{l+1} = y + F(y), y = x_l + G(x_l): one pre-norm block, applied `steps` times.

    A Universal Transformer (Dehghani et al. 2018) without halting and without step signals; the survey: "layer-wise
    shared parameters". With scaling="1/L" it is Euler's method, and more repetitions are a finer solution of one ODE.

    Relaxed, W_l = W + A_l B_l with own vectors d_l for every repetition: Relaxed Recursive Transformers (Bae et al.
    2024: LoRA for every depth), MiniViT (Zhang et al. 2022: norms of their own; its mixing of heads is not here), and
    with scaling="recursion" Raptor's time scale. Changes begin as nothing. A student begins with the singular values of
    what the mean of its teacher's blocks misses: get_ode_model(vit, knots=12, blend="constant", rank=8) has the same
    field, and student(x, depth="tied") repeats it.

    Repetition l has the weights of its part of the horizon, from (l - 1) T/N to l T/N, where a field knows the time.
    Where the field has a leak, the pull towards x0 follows each step and is as long as it.

    Args:
        block, scaling, scaling_value: as for `ResidualDepth`; `macaron` needs a field of its own and is refused.
        rank: of A_l B_l on every projection; 0 has own vectors alone (norms, biases), None changes nothing.
    """

    shares_field = True
    rules: ClassVar[Mapping[str, Expected]] = {
        **ResidualDepth.rules,
        "block": Expected(f"one of {', '.join(ABLE)}", lambda v: isinstance(v, str) and v in ABLE),
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
                problem = f"rank={rank} was given, but its weights move in time already; leave one out"
                raise ConfigError(self.subject, [problem])
            changes = [LowRankChange(field, rank) for _ in range(solver_config.steps)]
            still, moving = (
                KnotSchedule.of(count, solver_config.horizon, "constant") for count in (1, solver_config.steps)
            )
            field = KnottedField([field], still, changes, moving)
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
        recorder, x, whole_way = (
            self.recorder(x0, steps, replace(request, solver_config=None)),
            x0,
            self.field.dynamics(x0),
        )
        for number, (begin, end) in enumerate(pairwise(edges), start=1):
            x = recorder.record(number, self.step(recorder, held(whole_way, begin, end), x, number))
        return recorder.solution(x)

    @property
    def own_weights(self) -> list[str]:
        """With the changes that it has made room for: a field of the configuration alone has none."""
        return [*super().own_weights, *(["field.changes"] if self.relaxed else [])]

    @property
    def subject(self) -> str:
        return "a tied depth"

    def describe(self) -> str:
        relaxed = ", relaxed" if isinstance(self.field, KnottedField) else ""
        return f"{self.solver_config.steps} repetitions of one block{relaxed}{self.manner}"


def held(dynamics: Dynamics, t0: float, t1: float) -> Dynamics:
    """The equation as it is in the middle between two times: a layer knows its number, and no time within it."""
    here, middle = dynamics.for_step(t0, t1), (t0 + t1) / 2

    def part(component: Component) -> Component:
        return lambda x, t, observer: component(x, middle, observer)

    # A new one, and none of a kind that looks at the time of a step again.
    return Dynamics({name: part(f) for name, f in here.components.items()}, here.anchor, here.leak)
