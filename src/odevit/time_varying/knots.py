"""W(t) = (1 - w) W_k + w W_{k+1}: a field whose weights are interpolated between knots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from odevit.core.base import Component, Dynamics, Field, with_term
from odevit.core.field import Branch, VectorField
from odevit.core.solution import in_transform
from odevit.time_varying.blend_cache import BlendCache, Blends, usable
from odevit.time_varying.flat_weights import FlatKnots, Weights, can_be_flattened, named_weights
from odevit.time_varying.functional import functional_copy
from odevit.time_varying.knot_schedule import Between, KnotSchedule, skipped_pieces
from odevit.time_varying.low_rank import LowRankChange
from odevit.tokens import Tokens

MOST_BLENDS = 64
"""How many blended fields are kept for the next call, at most."""


class KnottedField(Field):
    """dx/dt = G(x; W(t)) + F(x; W(t)) - leak (x - x0),  W(t) = (1 - w) W_k + w W_{k+1} + changes(t).

    A knot is an ordinary field. Between knots each weight is interpolated, linearly or in constant pieces. After the
    last knot the weights are constant, so that the equation is autonomous there and may have a rest point. Dropout
    masks are drawn once for a trajectory and shared by all knots.

    In evaluation, blended weights are kept until a weight changes. Changes that PyTorch does not count cannot be seen
    (`weight.data.mul_(2)`, numpy, inference mode): call `eval()` after them.

    Args:
        knots: K fields of one shape.
        knot_schedule: the times of the knots and how weights are blended between them. With constant pieces, a step
            uses the piece in which its middle lies.
        changes: what is added to the knots' weights: low-rank changes of one shared weight, or vectors with more knots
            than the matrices have.
        change_schedule: the schedule of the changes.
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
        single = KnotSchedule.of(1, knot_schedule.horizon, knot_schedule.blend)
        self.change_schedule = single if change_schedule is None else change_schedule
        first = self._knot(0)
        self.dim = first.dim
        self.leak, self.fade = first.leak, first.fade
        self.autonomous_from = max(first.autonomous_from, self.knot_schedule.held_from, self.change_schedule.held_from)
        self._cache = BlendCache()

    def tie_knots(self) -> None:
        """Give all knots the weights of the first: an autonomous field."""
        for knot in self.knots[1:]:
            knot.load_state_dict(self.knots[0].state_dict())

    def at(self, t: float) -> VectorField:
        return self._blended(t, None)

    def dynamics(self, x0: Tokens) -> Dynamics:
        masks = {name: branch.draw_masks(x0, x0) for name, branch in self._knot(0).branches()}
        cache, flat = self._current_cache(), self._flat_knots()

        def components_for(middle: float | None) -> dict[str, Component]:
            # A step may use again what it blended. Blends with a gradient are not kept longer: a step that is computed
            # again in the backward pass has to blend what it blended the first time.
            blends: Blends | None = None if middle is None else {}

            def part(name: str) -> Component:
                def component(x: Tensor, t: float, hook: Any) -> Tensor:
                    branch = self._blended(t, usable(cache, blends), middle, flat).components[name]
                    return cast(Branch, branch)(x, t, hook, *masks[name])

                return component

            return {name: part(name) for name in masks}

        dynamics = KnottedDynamics(
            components_for(None), x0, self.leak, components_for=components_for, schedules=self.schedules
        )
        return dynamics if self.fade is None else self.fade(dynamics)

    def describe(self) -> str:
        moving = [f"W(t) {self.knot_schedule}"] if len(self.knots) > 1 else []
        if self.changes:
            moving.append(f"its {cast(LowRankChange, self.changes[0]).describe()} {self.change_schedule}")
        held = max(schedule.held_from for schedule in self.schedules)
        return ", ".join([self._knot(0).describe("x; W(t)"), *moving, f"held from t = {held:g} on"])

    def grid_problems(self, edges: Sequence[float]) -> list[str]:
        return skipped_pieces(self.schedules, edges)

    def clear_cache(self) -> None:
        self._cache = BlendCache()

    def train(self, mode: bool = True) -> KnottedField:
        self.clear_cache()  # a CUDA graph changes weights without a trace, but a training always calls this
        return super().train(mode)

    @property
    def schedules(self) -> tuple[KnotSchedule, KnotSchedule]:
        """Of the knots and of the changes."""
        return self.knot_schedule, self.change_schedule

    def _knot(self, k: int) -> VectorField:
        return cast(VectorField, self.knots[k])

    def _blended(
        self, t: float, blends: Blends | None, middle: float | None = None, flat: FlatKnots | None = None
    ) -> VectorField:
        """The field at time t, or in the constant piece around `middle`: one of `blends`, or a new one."""
        knot, change = (
            schedule(t if middle is None or schedule.blend == "linear" else middle) for schedule in self.schedules
        )
        if knot[1] == 0.0 and not self.changes:
            return self._knot(knot[0])
        key = (knot, change, torch.is_grad_enabled())
        field = None if blends is None else blends.get(key)
        if field is None:
            field = functional_copy(self._knot(knot[0]), (flat or self._weights)(knot, change))
            if blends is not None:
                if len(blends) >= MOST_BLENDS:
                    blends.clear()
                blends[key] = field
        return field

    def _weights(self, knot: Between, change: Between) -> dict[str, Tensor]:
        weights = _between([named_weights(field) for field in self.knots[knot[0] :][:2]], knot[1])
        if self.changes:
            pair = [cast(LowRankChange, part).weights(weights) for part in self.changes[change[0] :][:2]]
            for name, added in _between(pair, change[1]).items():
                weights[name] = weights[name] + added.view_as(weights[name])
        return weights

    def _flat_knots(self) -> FlatKnots | None:
        """The weights as vectors, for a trajectory with gradients to them; without gradients the cache is used."""
        weights = list(self.parameters())
        wanted = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        if not wanted or self._is_piecewise or torch.compiler.is_compiling() or not can_be_flattened(weights):
            return None
        knots = [named_weights(knot) for knot in self.knots]
        return FlatKnots(knots, [cast(LowRankChange, change).weights(knots[0]) for change in self.changes])

    @property
    def _is_piecewise(self) -> bool:
        """Whether the weights are those of a knot at all times, so that nothing is blended."""
        return self.knot_schedule.blend == "constant" and not self.changes

    def _current_cache(self) -> BlendCache | None:
        """The cache for this call; None where blends must not be kept."""
        if self._is_piecewise or self.training or torch.compiler.is_compiling() or in_transform():
            return None
        if torch.is_grad_enabled():
            # A caller that asks for gradients may change the weights, and a fused optimiser does so without a trace.
            if any(weight.requires_grad for weight in self.parameters()):
                self._cache = BlendCache()
            return None
        if not self._cache.fits(self):
            self._cache = BlendCache(self)  # in one assignment: another thread sees the old cache or the new one
        return self._cache


@dataclass(frozen=True)
class KnottedDynamics(Dynamics):
    """The equation of a field whose weights change; `components_for` makes its terms for a step with a given middle."""

    _: KW_ONLY
    components_for: Callable[[float | None], Mapping[str, Component]]
    schedules: Sequence[KnotSchedule]

    def for_step(self, t0: float, t1: float) -> Dynamics:
        return replace(self, components=self.components_for((t0 + t1) / 2))

    def add_term(self, term: Component) -> Dynamics:
        make = self.components_for
        return replace(
            self,
            components=with_term(self.components, term),
            components_for=lambda middle: with_term(make(middle), term),
        )

    def has_kink(self, t0: float, t1: float) -> bool:
        return any(schedule.passed(t0) != schedule.passed(t1) for schedule in self.schedules)

    def discontinuities(self, t0: float, t1: float) -> tuple[float, ...]:
        first, last = min(t0, t1), max(t0, t1)
        return tuple({time for schedule in self.schedules for time in schedule.borders if first < time < last})


def _between(pair: Sequence[Weights], w: float) -> dict[str, Tensor]:
    """(1 - w) of the first and w of the second. Between equals lerp gives the same to the last bit."""
    if w == 0.0:
        return dict(pair[0])
    first, second = pair
    return {name: torch.lerp(weight, second[name], w) for name, weight in first.items()}
