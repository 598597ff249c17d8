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
from odevit.time_varying.flat_weights import FlatKnots, Weights, can_be_flattened, functional_copy, named_weights
from odevit.time_varying.knot_schedule import KnotSchedule, Position, skipped_pieces
from odevit.time_varying.low_rank import LowRankChange
from odevit.tokens import Tokens

MAX_CACHED_BLENDS = 64
"""The largest number of blended fields in the cache."""
Blends = dict[Any, VectorField]
"""Fields with interpolated weights, by their position between knots."""


class BlendCache:
    """Blended fields, valid until a weight changes. It is neither copied nor saved with the field."""

    def __init__(self, owner: nn.Module | None = None) -> None:
        self.stamp = [] if owner is None else _stamp(owner)
        # These references keep the addresses of the weights from being used again.
        self.weights = [] if owner is None else [weight.detach() for weight in owner.parameters()]
        self.blends: tuple[Blends, Blends] = ({}, {})
        """Those made outside of inference mode, and those made in it."""

    def is_valid(self, owner: nn.Module) -> bool:
        return self.stamp == _stamp(owner)

    def __reduce__(self) -> tuple[type[BlendCache], tuple[()]]:
        return BlendCache, ()


def _stamp(owner: nn.Module) -> list[Any]:
    """The autocast state, which changes matrix products, and the address and version of every weight."""
    stamp: list[Any] = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    modules = [owner]
    for module in modules:  # `parameters()` would take as long as a small step
        modules += [part for part in module._modules.values() if part is not None]
        for weight in module._parameters.values():
            if weight is not None:
                stamp += [weight.data_ptr(), 0 if weight.is_inference() else weight._version]
    return stamp


def select_blends(cache: BlendCache | None, blends: Blends | None) -> Blends | None:
    """Where to look up and store a blend: in the cache, or in `blends` if other calls cannot use it.

    Other calls cannot use a blend with a gradient, or one made in a function transform.
    """
    if cache is None or torch.is_grad_enabled() or in_transform():
        return blends
    return cache.blends[torch.is_inference_mode_enabled()]


class KnottedField(Field):
    """dx/dt = G(x; W(t)) + F(x; W(t)) - leak (x - x0),  W(t) = (1 - w) W_k + w W_{k+1} + changes(t).

    A knot is a field with one set of weights. Between knots each weight is interpolated, linearly or in constant
    pieces. After the last knot the weights are constant, so that the equation is autonomous and may have a rest point.
    Dropout masks are drawn once for a trajectory and shared by all knots.

    In evaluation, interpolated weights are cached until a weight changes. Changes that PyTorch does not count
    (`weight.data.mul_(2)`, numpy, inference mode) are not noticed: call `eval()` after them.

    Args:
        knots: K fields of one shape.
        knot_schedule: the times of the knots, and the interpolation. With constant pieces, a step uses the piece that
            contains its middle.
        changes: are added to the weights of the knots: low-rank changes of one shared weight, or vectors with more
            knots than the matrices have.
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
        constant_from = max(schedule.constant_from for schedule in self.schedules)
        self.autonomous_from = max(first.autonomous_from, constant_from)
        self._cache = BlendCache()

    def tie_knots(self) -> None:
        """Copy the weights of the first knot to all others, which makes the field autonomous."""
        for knot in self.knots[1:]:
            knot.load_state_dict(self.knots[0].state_dict())

    def at(self, t: float) -> VectorField:
        return self._blended(t, None)

    def dynamics(self, x0: Tokens) -> Dynamics:
        masks = {name: branch.draw_masks(x0, x0) for name, branch in self._knot(0).branches()}
        cache, flat = self._current_cache(), self._flat_knots()

        def components_for(middle: float | None) -> dict[str, Component]:
            # The stages of a step share their blends. With gradients, blends are not kept longer: a checkpointed step
            # must make the same blends again in the backward pass.
            blends: Blends | None = None if middle is None else {}

            def component_of(name: str) -> Component:
                def component(x: Tensor, t: float, hook: Any) -> Tensor:
                    branch = self._blended(t, select_blends(cache, blends), middle, flat).components[name]
                    return cast(Branch, branch)(x, t, hook, *masks[name])

                return component

            return {name: component_of(name) for name in masks}

        dynamics = KnottedDynamics(
            components_for(None), x0, self.leak, components_for=components_for, schedules=self.schedules
        )
        return dynamics if self.fade is None else self.fade(dynamics)

    def describe(self) -> str:
        parts = [f"W(t) {self.knot_schedule}"] if len(self.knots) > 1 else []
        if self.changes:
            parts.append(f"its {cast(LowRankChange, self.changes[0]).describe()} {self.change_schedule}")
        constant_from = max(schedule.constant_from for schedule in self.schedules)
        return ", ".join([self._knot(0).describe("x; W(t)"), *parts, f"constant from t = {constant_from:g} on"])

    def grid_problems(self, edges: Sequence[float]) -> list[str]:
        return skipped_pieces(self.schedules, edges)

    def clear_cache(self) -> None:
        self._cache = BlendCache()

    def train(self, mode: bool = True) -> KnottedField:
        self.clear_cache()  # a CUDA graph does not count its changes of weights
        return super().train(mode)

    @property
    def schedules(self) -> tuple[KnotSchedule, KnotSchedule]:
        """The schedules of the knots and of the changes."""
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
                if len(blends) >= MAX_CACHED_BLENDS:
                    blends.clear()
                blends[key] = field
        return field

    def _weights(self, knot: Position, change: Position) -> dict[str, Tensor]:
        weights = _interpolate([named_weights(field) for field in self.knots[knot[0] :][:2]], knot[1])
        if self.changes:
            pair = [cast(LowRankChange, part).weights(weights) for part in self.changes[change[0] :][:2]]
            for name, change_of_weight in _interpolate(pair, change[1]).items():
                weights[name] = weights[name] + change_of_weight.view_as(weights[name])
        return weights

    def _flat_knots(self) -> FlatKnots | None:
        """The weights as vectors, if they have gradients; without gradients the cache is used."""
        weights = list(self.parameters())
        with_gradient = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        if not with_gradient or self._is_piecewise or torch.compiler.is_compiling() or not can_be_flattened(weights):
            return None
        knots = [named_weights(knot) for knot in self.knots]
        return FlatKnots(knots, [cast(LowRankChange, change).weights(knots[0]) for change in self.changes])

    @property
    def _is_piecewise(self) -> bool:
        """Whether the weights are those of a knot at all times, without interpolation."""
        return self.knot_schedule.blend == "constant" and not self.changes

    def _current_cache(self) -> BlendCache | None:
        """The cache for this call; None if blends must not be cached."""
        if self._is_piecewise or self.training or torch.compiler.is_compiling() or in_transform():
            return None
        if torch.is_grad_enabled():
            # Weights with gradients may change, and the changes of a fused optimiser are not counted.
            if any(weight.requires_grad for weight in self.parameters()):
                self._cache = BlendCache()
            return None
        if not self._cache.is_valid(self):
            self._cache = BlendCache(self)  # one assignment, for other threads
        return self._cache


@dataclass(frozen=True)
class KnottedDynamics(Dynamics):
    """The equation of a field with knots; components_for(middle) makes the components for a step with that middle."""

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
        return any(schedule.knots_until(t0) != schedule.knots_until(t1) for schedule in self.schedules)

    def discontinuities(self, t0: float, t1: float) -> tuple[float, ...]:
        first, last = min(t0, t1), max(t0, t1)
        return tuple({time for schedule in self.schedules for time in schedule.jumps if first < time < last})


def _interpolate(pair: Sequence[Weights], w: float) -> dict[str, Tensor]:
    """(1 - w) W_1 + w W_2; for equal weights lerp is exact."""
    if w == 0.0:
        return dict(pair[0])
    first, second = pair
    return {name: torch.lerp(weight, second[name], w) for name, weight in first.items()}
