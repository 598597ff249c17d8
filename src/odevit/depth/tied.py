"""x_{l+1} = y + F(y), y = x_l + G(x_l): depth as repetition of one block, which may relax a little every time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, ClassVar

from odevit.depth.blocks import BLOCKS
from odevit.depth.layered import RepeatedDepth
from odevit.depth.meaning import DEPTHS, refuse
from odevit.depth.residual import ResidualDepth
from odevit.errors import ConfigError, Expected, whole
from odevit.field.change import Change
from odevit.field.dynamics import Component, Dynamics, Field
from odevit.field.knots import KnottedField
from odevit.field.timetable import Timetable
from odevit.field.vector_field import VectorField
from odevit.solver import Solution, Way
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
        "rank": whole(0, optional=True),
    }

    def __init__(
        self,
        make_field: Callable[[], Field],
        way: Way,
        *,
        block: str = "lie_trotter",
        scaling: str = "none",
        scaling_value: float | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(make_field, way)
        field = make_field()
        self.relaxed = rank is not None
        if rank is not None:
            if not isinstance(field, VectorField):
                problem = f"rank={rank} was given, but its weights move in time already; leave one out"
                raise ConfigError(self.subject, [problem])
            changes = [Change(field, rank) for _ in range(way.steps)]
            still, moving = (Timetable.of(count, way.horizon, "constant") for count in (1, way.steps))
            field = KnottedField([field], still, changes, moving)
        (self.field,) = self.furnish([field], block, scaling, scaling_value)

    def forward(self, x0: Tokens, way: Way | None = None, **options: Any) -> Solution:
        steps = self.repetitions(way)
        edges = self.way.but(steps=steps).edges
        problems = self.field.refusals(edges)
        if self.scaling.is_learned and steps != self.way.steps:
            problems.append(f"steps={steps} was given, but it has learned factors for {self.way.steps} repetitions")
        refuse(self.subject, problems)
        walk, x, whole_way = self.walk(x0, steps, **options), x0, self.field.dynamics(x0)
        for number, (begin, end) in enumerate(pairwise(edges), start=1):
            x = walk.reach(number, self.step(walk, held(whole_way, begin, end), x, number))
        return walk.solution(x)

    @property
    def own_weights(self) -> list[str]:
        """With the changes that it has made room for: a field of the configuration alone has none."""
        return [*super().own_weights, *(["field.changes"] if self.relaxed else [])]

    @property
    def subject(self) -> str:
        return "a tied depth"

    def describe(self) -> str:
        relaxed = ", relaxed" if isinstance(self.field, KnottedField) else ""
        return f"{self.way.steps} repetitions of one block{relaxed}{self.manner}"


def held(dynamics: Dynamics, t0: float, t1: float) -> Dynamics:
    """The equation as it is in the middle between two times: a layer knows its number, and no time within it."""
    here, middle = dynamics.within(t0, t1), (t0 + t1) / 2

    def part(component: Component) -> Component:
        return lambda x, t, observer: component(x, middle, observer)

    # A new one, and none of a kind that looks at the time of a step again.
    return Dynamics({name: part(f) for name, f in here.components.items()}, here.anchor, here.leak)
