"""t -> (k, w): the position of a time between two knots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

BLENDS = ("linear", "constant")
Position = tuple[int, float]
"""(k, w): at a share w of the distance from knot k to knot k + 1."""


@dataclass(frozen=True)
class KnotSchedule:
    """t -> (k, w): the knot before a time, and the share w of the distance to the next one.

    With `linear`, weights are interpolated between knots; with `constant`, they are those of knot k. Before the first
    knot and after the last one they are constant.

    Args:
        times: the times of the knots, as shares of the horizon, increasing.
        horizon: T.
        blend: `linear` or `constant`.
    """

    times: tuple[float, ...]
    horizon: float
    blend: str

    @classmethod
    def of(cls, knots: int, horizon: float, blend: str, times: Sequence[float] | None = None) -> KnotSchedule:
        """Knots at the given times, or evenly spaced: from 0 to T, or, if constant, at the start of each T / K."""
        parts = max(1, knots - 1 if blend == "linear" else knots)
        return cls(tuple(n / parts for n in range(knots)) if times is None else tuple(times), horizon, blend)

    def __call__(self, t: float) -> Position:
        share = t / self.horizon
        k = max(0, self.knots_until(t) - 1)
        if self.blend == "constant" or k == len(self.times) - 1 or share <= self.times[0]:
            return k, 0.0
        # Rounded to twelve digits: a time on a knot may have a rounding error.
        return k, round((share - self.times[k]) / (self.times[k + 1] - self.times[k]), 12)

    def __str__(self) -> str:
        count = len(self.times)
        return f"linear between {count} knots" if self.blend == "linear" else f"in {count} constant pieces"

    def knots_until(self, t: float) -> int:
        """The number of knots at or before t; it differs between two times if there is a kink between them."""
        return sum(time <= t / self.horizon + 1e-12 for time in self.times)

    @property
    def jumps(self) -> tuple[float, ...]:
        """The times between constant pieces, at which weights jump."""
        return tuple(time * self.horizon for time in self.times[1:]) if self.blend == "constant" else ()

    @property
    def constant_from(self) -> float:
        """The time of the last knot, from which on the weights are constant."""
        return self.times[-1] * self.horizon

    def skipped(self, edges: Sequence[float]) -> int:
        """How many constant pieces contain the middle of no step between these times; 0 for linear weights."""
        if self.blend != "constant":
            return 0
        t0, t1 = edges[0], edges[-1]
        used = {self((start + end) / 2)[0] for start, end in pairwise(edges)}
        # The first and the last piece, also if t0 or t1 is between two pieces.
        first, last = (self(t0 + (t1 - t0) * share)[0] for share in (1e-9, 1 - 1e-9))
        return abs(last - first) + 1 - len(used)


def skipped_pieces(schedules: Sequence[KnotSchedule], edges: Sequence[float]) -> list[str]:
    """Why steps between these times are too long for the constant pieces of the knots and of the changes."""
    sentences = []
    for schedule, setting in zip(schedules, ("knots", "vector_knots, or knots with a rank"), strict=True):
        if skipped := schedule.skipped(edges):
            sentences.append(
                f"steps={len(edges) - 1} from t={edges[0]:g} to t={edges[-1]:g} would skip {skipped} of the "
                f"{len(schedule.times)} constant pieces of weights ({setting}), which end at t={schedule.horizon:g}; "
                "take steps no longer than a piece, or fewer pieces"
            )
    return sentences
