"""t -> (k, w): the two knots around a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

BLENDS = ("linear", "constant")
Between = tuple[int, float]
"""k and w: a share w of the way from knot k to the next one."""


@dataclass(frozen=True)
class KnotSchedule:
    """t -> (k, w): the knot before a time, and the share w of the way from it to the next one.

    Linear weights are interpolated between knots; constant ones are those of the last knot. Before the first knot and
    after the last one the weights are constant.

    Args:
        times: of the knots, as shares of the horizon, increasing.
        horizon: T.
        blend: `linear` or `constant`.
    """

    times: tuple[float, ...]
    horizon: float
    blend: str

    @classmethod
    def of(cls, knots: int, horizon: float, blend: str, times: Sequence[float] | None = None) -> KnotSchedule:
        """Knots at the given times, or evenly: from 0 to T, or, for pieces, at the beginning of each T / K."""
        parts = max(1, knots - 1 if blend == "linear" else knots)
        return cls(tuple(n / parts for n in range(knots)) if times is None else tuple(times), horizon, blend)

    def __call__(self, t: float) -> Between:
        share = t / self.horizon
        k = max(0, self.passed(t) - 1)
        if self.blend == "constant" or k == len(self.times) - 1 or share <= self.times[0]:
            return k, 0.0
        # Rounded to twelve digits, so that rounding errors in the time do not move a step off a knot.
        return k, round((share - self.times[k]) / (self.times[k + 1] - self.times[k]), 12)

    def __str__(self) -> str:
        count = len(self.times)
        return f"straight through {count} knots" if self.blend == "linear" else f"in {count} pieces"

    def passed(self, t: float) -> int:
        """How many knots are at or before t; it differs between two times if the weights have a kink between them."""
        return sum(time <= t / self.horizon + 1e-12 for time in self.times)

    @property
    def borders(self) -> tuple[float, ...]:
        """The times at which weights jump from a piece to the next one."""
        return tuple(time * self.horizon for time in self.times[1:]) if self.blend == "constant" else ()

    @property
    def held_from(self) -> float:
        """The time of the last knot."""
        return self.times[-1] * self.horizon

    def skipped(self, edges: Sequence[float]) -> int:
        """How many constant pieces contain the middle of no step between these times; 0 for linear weights."""
        if self.blend != "constant":
            return 0
        t0, t1 = edges[0], edges[-1]
        used = {self((begin + end) / 2)[0] for begin, end in pairwise(edges)}
        # The first and the last piece that is entered, in case t0 or t1 is a border.
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
