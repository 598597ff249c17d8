"""lambda_1 along a path and where it comes to rest: the one definition that reports and benchmarks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.lyapunov import Exponents, lyapunov_spectrum, maximal_exponent
from odevit.analysis.significance import Share
from odevit.field.dynamics import Field
from odevit.model import Askable
from odevit.solver import Way
from odevit.tokens import Tokens

FAR = 8
"""Horizons after which a trajectory should have come to rest, if it ever does."""
TURNING = 2
"""Horizons at rest that a perturbation is given to turn towards the slowest direction before its growth is counted."""
COUNTED = 1
"""Horizons over which its growth is counted."""
LONGER = 8
"""Horizons that are added for an image whose exponent may still lie on either side of zero."""
DOUBT = 3.0
"""Standard errors from zero within which that is so."""
DOUBTFUL = 64
"""At most this many images are measured for longer."""


@dataclass(frozen=True)
class Maximal:
    """lambda_1 of every image.

    Args:
        values, error, converged: [image], as in `Exponents`.
        running: [time], the mean over images after each step of the first measurement.
        times: of those steps.
        prolonged: [image], whether it was measured for longer.
    """

    values: Tensor
    error: Tensor
    converged: Tensor
    running: Tensor
    times: tuple[float, ...]
    prolonged: Tensor

    @property
    def negative(self) -> Share:
        """The share of negative exponents; one that is not finite is not negative."""
        return Share(int((self.values < 0).sum()), len(self.values))

    @property
    def not_converged(self) -> Share:
        return Share(int((~self.converged).sum()), len(self.values))

    @property
    def mean(self) -> float | None:
        """Of the finite ones."""
        return self.finite.mean().item() if len(self.finite) else None

    @property
    def mean_error(self) -> float | None:
        """The standard error of the mean."""
        return self.finite.std().item() / len(self.finite) ** 0.5 if len(self.finite) > 1 else None

    @property
    def largest(self) -> float | None:
        """Of the finite ones."""
        return self.finite.max().item() if len(self.finite) else None

    @property
    def finite(self) -> Tensor:
        """The values that are finite."""
        return self.values[self.values.isfinite()]


def in_fixed_steps(way: Way) -> Way:
    """The way whose steps are differentiated: the one given, or RK4 in place of a solver that chooses its own steps."""
    return way if way.is_fixed else way.but(solver="rk4")


@torch.no_grad()
def come_to_rest(model: Askable, x0: Tokens, way: Way | None = None) -> Tokens:
    """x(8 T), the steps of a way (the model's own unless given) carried on to `FAR` horizons."""
    return model.depth(x0, (way or model.way).times(FAR)).state


def measure_exponents(
    dynamics: Field, way: Way, starts: Iterable[Tokens], rests: Iterable[Tokens], *, seed: int = 0
) -> tuple[Maximal, Maximal]:
    """lambda_1 along the path up to the horizon, and where the trajectory has come to rest.

    A perturbation at rest begins in the direction it has at the end of the path, is given `TURNING` horizons to turn,
    and is counted for `COUNTED`. Where its sign remains in doubt it is followed for `LONGER`.

    Args:
        dynamics: the field f.
        way: whose steps are differentiated.
        starts: x(0), batch by batch.
        rests: the states of the same images at rest, see `come_to_rest`.
        seed: of the random directions at the start.
    """
    way, left = in_fixed_steps(way), DOUBTFUL
    along, resting = _Collected(), _Collected()
    common: dict[str, Any] = {"solver": way.solver, "seed": seed}
    for x0, rest in zip(starts, rests, strict=True):
        path = maximal_exponent(dynamics, x0, horizon=way.horizon, steps=max(2, way.steps), anchor=x0, **common)
        calm = maximal_exponent(dynamics, rest, anchor=x0, **_carried_on(way, path), **common)
        along.add(path)
        resting.add(calm)
        doubtful = (calm.values + DOUBT * calm.error > 0).any(dim=1).nonzero().flatten()[:left]
        left -= len(doubtful)
        if len(doubtful):
            longer = maximal_exponent(
                dynamics,
                calm.state[doubtful],
                horizon=LONGER * way.horizon,
                steps=max(2, LONGER * way.steps),
                t0=calm.times[-1],
                anchor=x0[doubtful],
                frame=calm.frame[doubtful],
                **common,
            )
            resting.replace(doubtful.cpu(), longer)
    return along.joined(), resting.joined()


def along_the_path(dynamics: Field, way: Way, starts: Iterable[Tokens], tokens: slice, *, seed: int = 0) -> Maximal:
    """lambda_1 up to the horizon of a perturbation that begins in some of the tokens only."""
    way, along = in_fixed_steps(way), _Collected()
    options: dict[str, Any] = {"horizon": way.horizon, "steps": max(2, way.steps), "solver": way.solver, "seed": seed}
    for x0 in starts:
        along.add(maximal_exponent(dynamics, x0, tokens=tokens, **options))
    return along.joined()


def measure_spectrum(
    dynamics: Field, way: Way, x0: Tokens, rest: Tokens, k: int, *, seed: int = 0
) -> tuple[Exponents, Exponents]:
    """The k leading exponents along the path and at rest, measured as `measure_exponents` measures the first."""
    way = in_fixed_steps(way)
    common: dict[str, Any] = {"solver": way.solver, "seed": seed, "anchor": x0}
    path = lyapunov_spectrum(dynamics, x0, k, horizon=way.horizon, steps=max(2, way.steps), **common)
    return path, lyapunov_spectrum(dynamics, rest, k, **_carried_on(way, path), **common)


def _carried_on(way: Way, path: Exponents) -> dict[str, Any]:
    """The settings of a measurement at rest, in the directions that its path ended with."""
    counted = max(2, COUNTED * way.steps)
    return {
        "horizon": counted * way.step,
        "steps": counted,
        "transient": TURNING * way.horizon,
        "t0": FAR * way.horizon,
        # A frame that is no longer finite says nothing; a random one is no worse.
        "frame": path.frame if torch.isfinite(path.frame).all() else None,
    }


class _Collected:
    """lambda_1 batch by batch, on the CPU; states and frames are let go."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, ...]] = []
        self.running: Tensor | float = 0.0
        self.times: tuple[float, ...] = ()

    def add(self, batch: Exponents) -> None:
        self.parts.append((*_first(batch), torch.zeros(len(batch.values), dtype=torch.bool)))
        self.running += torch.where(batch.running.isfinite(), batch.running, 0.0)[..., 0].sum(dim=1).cpu()
        self.times = batch.times

    def replace(self, which: Tensor, longer: Exponents) -> None:
        """Put a longer measurement in place of some images of the last batch."""
        for values, new in zip(self.parts[-1], (*_first(longer), torch.tensor(True)), strict=True):
            values[which] = new

    def joined(self) -> Maximal:
        values, error, converged, prolonged = (torch.cat(parts) for parts in zip(*self.parts, strict=True))
        mean = torch.as_tensor(self.running) / max(1, int(values.isfinite().sum()))
        return Maximal(values, error, converged, mean, self.times, prolonged)


def _first(batch: Exponents) -> tuple[Tensor, Tensor, Tensor]:
    return batch.values[:, 0].cpu(), batch.error[:, 0].cpu(), batch.converged.cpu()
