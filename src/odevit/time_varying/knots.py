"""W(t) = (1 - w) W_k + w W_{k+1}: a field whose weights move with time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from odevit.core.dynamics import Component, Dynamics, Field, with_term
from odevit.core.field import Branch, VectorField
from odevit.time_varying.blend_cache import BlendCache, Made, in_transform, usable
from odevit.time_varying.flat_weights import FlatKnots, Weights, can_be_flattened, named_weights
from odevit.time_varying.functional import functional_copy
from odevit.time_varying.knot_schedule import Between, KnotSchedule, skipping
from odevit.time_varying.low_rank import LowRankChange
from odevit.tokens import Tokens

KEPT = 64
"""How many fields between the knots are kept for the next call, at most."""


class KnottedField(Field):
    """dx/dt = G(x; W(t)) + F(x; W(t)) - leak (x - x0),  W(t) = (1 - w) W_k + w W_{k+1} + changes(t).

    A knot is an ordinary field. Every weight runs through its values at the knots, straight or in steps; from the last
    knot on it stands still, so that the equation is autonomous there and may have a rest point. Dropout masks are
    drawn once for a trajectory and shared by all knots.

    In evaluation blended weights are kept until a weight changes. What changes them behind autograd's back leaves no
    trace (`weight.data.mul_(2)`, numpy, inference mode): call `eval()` after it.

    Args:
        knots: K fields that are alike.
        timetable: when they stand there, and how the weights run between them; with constant pieces a step belongs to
            the piece in which its middle lies.
        changes: what is added to the knots' weights: low-rank changes of one shared weight, or vectors that move in
            more detail than matrices.
        changing: the timetable of the changes.
    """

    def __init__(
        self,
        knots: Iterable[VectorField],
        knot_schedule: KnotSchedule,
        changes: Iterable[LowRankChange] = (),
        change_schedule: KnotSchedule | None = None,
    ) -> None:
        super().__init__()
        self.knots = nn.ModuleList(knots)
        self.changes = nn.ModuleList(changes)
        self.knot_schedule = knot_schedule
        self.change_schedule = (
            KnotSchedule.of(1, knot_schedule.horizon, knot_schedule.blend)
            if change_schedule is None
            else change_schedule
        )
        first = self._knot(0)
        self.dim = first.dim
        self.leak, self.fade = first.leak, first.fade
        self.autonomous_from = max(first.autonomous_from, self.knot_schedule.held_from, self.change_schedule.held_from)
        self._kept = BlendCache()

    def tie_knots(self) -> None:
        """Every knot as the first one: an autonomous field, which learns how much of the time it needs."""
        for knot in self.knots[1:]:
            knot.load_state_dict(self.knots[0].state_dict())

    def at(self, t: float) -> VectorField:
        return self._blended(t, None)

    def dynamics(self, x0: Tokens) -> Dynamics:
        masks = {name: branch.draw_masks(x0, branch.rotation(x0)) for name, branch in self._knot(0).branches()}
        kept, flat = self._shelf(), self._flattened()

        def during(middle: float | None) -> dict[str, Component]:
            # What a step makes it may use again. Longer than that weights with a gradient are not kept: a step that is
            # recomputed in the backward pass has to make what it made the first time.
            made: Made | None = None if middle is None else {}

            def part(name: str) -> Component:
                def component(x: Tensor, t: float, observer: Any) -> Tensor:
                    branch = self._blended(t, usable(kept, made), middle, flat).components[name]
                    return cast(Branch, branch)(x, t, observer, *masks[name])

                return component

            return {name: part(name) for name in masks}

        return KnottedDynamics(
            during(None), anchor=x0, leak=self.leak, fade=self.fade, during=during, tables=self._tables
        )

    def describe(self) -> str:
        moving = [f"W(t) {self.knot_schedule}"] if len(self.knots) > 1 else []
        moving += (
            [f"its {cast(LowRankChange, self.changes[0]).describe()} {self.change_schedule}"] if self.changes else []
        )
        held = max(self.knot_schedule.held_from, self.change_schedule.held_from)
        return ", ".join([self._knot(0).describe("x; W(t)"), *moving, f"held from t = {held:g} on"])

    def grid_problems(self, edges: Sequence[float]) -> list[str]:
        return skipping(self._tables, edges)

    def train(self, mode: bool = True) -> KnottedField:
        # A captured graph changes weights without a trace; but nobody trains without calling this.
        self._kept = BlendCache()
        return super().train(mode)

    @property
    def _tables(self) -> tuple[KnotSchedule, KnotSchedule]:
        """Of the knots and of the changes."""
        return self.knot_schedule, self.change_schedule

    def _knot(self, k: int) -> VectorField:
        return cast(VectorField, self.knots[k])

    def _blended(
        self, t: float, made: Made | None, middle: float | None = None, flat: FlatKnots | None = None
    ) -> VectorField:
        """The field at time t, or in the piece around `middle`: one of `made`, or a new one."""
        place, change = (table(t if middle is None or table.blend == "linear" else middle) for table in self._tables)
        if place[1] == 0.0 and not self.changes:
            return self._knot(place[0])
        key = (place, change, torch.is_grad_enabled())
        field = None if made is None else made.get(key)
        if field is None:
            field = functional_copy(self._knot(place[0]), (flat or self._weights)(place, change))
            if made is not None:
                if len(made) >= KEPT:
                    made.clear()
                made[key] = field
        return field

    def _weights(self, place: Between, change: Between) -> dict[str, Tensor]:
        weights = _between([named_weights(knot) for knot in self.knots[place[0] :][:2]], place[1])
        if self.changes:
            pair = [cast(LowRankChange, part).weights(weights) for part in self.changes[change[0] :][:2]]
            for name, added in _between(pair, change[1]).items():
                weights[name] = weights[name] + added.view_as(weights[name])
        return weights

    def _flattened(self) -> FlatKnots | None:
        """The weights as vectors, for a trajectory with gradients to them; without gradients they are kept blended."""
        weights = list(self.parameters())
        wanted = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        if not wanted or self._jumps or torch.compiler.is_compiling() or not can_be_flattened(weights):
            return None
        knots = [named_weights(knot) for knot in self.knots]
        return FlatKnots(knots, [cast(LowRankChange, change).weights(knots[0]) for change in self.changes])

    @property
    def _jumps(self) -> bool:
        """Whether there is nothing to blend."""
        return self.knot_schedule.blend == "constant" and not self.changes

    def _shelf(self) -> BlendCache | None:
        """What was kept for this call: blended weights are made once for all who ask for the same."""
        if self._jumps or self.training or torch.compiler.is_compiling() or in_transform():
            return None
        if torch.is_grad_enabled():
            # Who asks for gradients may change the weights, and a fused optimiser does so without a trace.
            if any(weight.requires_grad for weight in self.parameters()):
                self._kept = BlendCache()
            return None
        if not self._kept.fits(self):
            self._kept = BlendCache(self)  # at once: another thread sees the old one or the new one
        return self._kept


@dataclass(frozen=True)
class KnottedDynamics(Dynamics):
    """The equation of a field whose weights move; `during` makes its components for a step with a given middle.

    `tables` say when they turn a corner, or jump.
    """

    _: KW_ONLY
    during: Callable[[float | None], Mapping[str, Component]]
    tables: Sequence[KnotSchedule]

    def for_step(self, t0: float, t1: float) -> Dynamics:
        return replace(self, components=self.during((t0 + t1) / 2))

    def add_term(self, push: Component) -> Dynamics:
        during = self.during
        components = with_term(self.components, push)
        return replace(self, components=components, during=lambda middle: with_term(during(middle), push))

    def has_kink(self, t0: float, t1: float) -> bool:
        return super().has_kink(t0, t1) or any(table.passed(t0) != table.passed(t1) for table in self.tables)

    def discontinuities(self, t0: float, t1: float) -> tuple[float, ...]:
        first, last = min(t0, t1), max(t0, t1)
        return tuple({time for table in self.tables for time in table.borders if first < time < last})


def _between(pair: Sequence[Weights], w: float) -> dict[str, Tensor]:
    """(1 - w) of the first and w of the second. Between equals lerp gives the same to the last bit."""
    if w == 0.0:
        return dict(pair[0])
    first, second = pair
    return {name: torch.lerp(weight, second[name], w) for name, weight in first.items()}
