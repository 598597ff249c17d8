"""lambda_1 along a path and at rest, as reports and benchmarks define it; and the motion of paths without a rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.base import integrate
from odevit.analysis.lyapunov import Exponents, lyapunov_spectrum, maximal_exponent, with_fixed_steps
from odevit.analysis.significance import Proportion, standard_error
from odevit.core.base import Field
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.tokens import Tokens

FAR = 8
"""Horizons after which a trajectory that has a rest point should be at it."""
TURNING = 2
"""Horizons at rest during which a perturbation turns towards the slowest direction, before its growth is counted."""
COUNTED = 1
"""Horizons over which its growth is counted."""
LONGER = 8
"""Further horizons for an image whose exponent may still lie on either side of zero."""
DOUBT = 3.0
"""Standard errors from zero within which that is so."""
DOUBTFUL = 64
"""At most this many images are measured for longer."""

WINDOW = 4
"""Horizons over which the motion of a path is classified."""
STILL = 1e-3
"""It rests if it moves by less than this share of its norm within the window."""
TURNS = -0.5
"""It oscillates if its displacements have an autocorrelation below this at some lag."""
STRAIGHT = 0.5
"""It drifts if its net displacement is more than this share of its length, and wanders otherwise."""
UNDECIDED = 0.1
"""An image is between two classes if its median margin p_1 - p_2 is below this, or if its answer changes."""


@dataclass(frozen=True)
class LargestExponents:
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
    def negative(self) -> Proportion:
        """The share of negative exponents; one that is not finite counts as not negative."""
        return Proportion.of(self.values < 0)

    @property
    def not_converged(self) -> Proportion:
        return Proportion.of(~self.converged)

    @property
    def finite(self) -> Tensor:
        return self.values[self.values.isfinite()]

    @property
    def mean(self) -> float | None:
        """The mean of the finite values."""
        return self.finite.mean().item() if len(self.finite) else None

    @property
    def mean_error(self) -> float | None:
        """The standard error of the mean."""
        return standard_error(self.finite)

    @property
    def largest(self) -> float | None:
        """The largest of the finite values."""
        return self.finite.max().item() if len(self.finite) else None


@torch.no_grad()
def integrate_to_rest(model: ImageModel, x0: Tokens, solver_config: SolverConfig | None = None) -> Tokens:
    """x(8 T): the steps of a config (the model's own unless given), continued to `FAR` horizons."""
    return model.follow(x0, (solver_config or model.solver_config).stretched(FAR)).state


def measure_exponents(
    field: Field, solver_config: SolverConfig, starts: Iterable[Tokens], rests: Iterable[Tokens], *, seed: int = 0
) -> tuple[LargestExponents, LargestExponents]:
    """lambda_1 along the path and at rest, see `measure_spectrum`; where the sign is in doubt, after `LONGER` more.

    Args:
        field: f.
        solver_config: the steps that are differentiated.
        starts, rests: x(0) batch by batch, and the states of the same images at rest, see `integrate_to_rest`.
        seed: of the random directions at the start.
    """
    solver_config, left = with_fixed_steps(solver_config), DOUBTFUL
    paths, resting = [], []
    for x0, rest in zip(starts, rests, strict=True):
        path, at_rest = measure_spectrum(field, solver_config, x0, rest, 1, seed=seed)
        paths.append(_first_exponent(path))
        resting.append(_first_exponent(at_rest))
        doubtful = (at_rest.values + DOUBT * at_rest.error > 0).any(dim=1).nonzero().flatten()[:left]
        left -= len(doubtful)
        if len(doubtful):
            longer = maximal_exponent(
                field,
                at_rest.state[doubtful],
                horizon=LONGER * solver_config.horizon,
                steps=max(2, LONGER * solver_config.steps),
                solver=solver_config.solver,
                t0=at_rest.times[-1],
                anchor=x0[doubtful],
                frame=at_rest.frame[doubtful],
            )
            values, error, converged, _running, prolonged = resting[-1]
            for part, measured in zip((values, error, converged), _first_exponent(longer), strict=False):
                part[doubtful.cpu()] = measured
            prolonged[doubtful.cpu()] = True
    return _joined(paths, path.times), _joined(resting, at_rest.times)


def path_exponents(
    field: Field, solver_config: SolverConfig, starts: Iterable[Tokens], tokens: slice, *, seed: int = 0
) -> LargestExponents:
    """lambda_1 up to the horizon of a perturbation that begins in some of the tokens only."""
    options = _up_to_the_horizon(with_fixed_steps(solver_config))
    paths = [maximal_exponent(field, x0, tokens=tokens, **options, seed=seed) for x0 in starts]
    return _joined([_first_exponent(path) for path in paths], paths[-1].times)


def measure_spectrum(
    field: Field, solver_config: SolverConfig, x0: Tokens, rest: Tokens, k: int, *, seed: int = 0
) -> tuple[Exponents, Exponents]:
    """The k leading exponents along the path up to the horizon, and at rest.

    A perturbation at rest begins in the direction it has at the end of the path, turns for `TURNING` horizons, and is
    counted for `COUNTED`.
    """
    solver_config = with_fixed_steps(solver_config)
    counted = max(2, COUNTED * solver_config.steps)
    path = lyapunov_spectrum(field, x0, k, **_up_to_the_horizon(solver_config), seed=seed)
    at_rest = lyapunov_spectrum(
        field,
        rest,
        k,
        horizon=counted * solver_config.step,
        steps=counted,
        solver=solver_config.solver,
        transient=TURNING * solver_config.horizon,
        t0=FAR * solver_config.horizon,
        anchor=x0,
        # A frame that is not finite is replaced by a random one.
        frame=path.frame if torch.isfinite(path.frame).all() else None,
        seed=seed,
    )
    return path, at_rest


def _up_to_the_horizon(config: SolverConfig) -> dict[str, Any]:
    return {"horizon": config.horizon, "steps": max(2, config.steps), "solver": config.solver}


def _first_exponent(batch: Exponents) -> list[Tensor]:
    """lambda_1 of each image, on the CPU, in the order of `_joined`; states and frames are freed."""
    running = torch.where(batch.running.isfinite(), batch.running, 0.0)[..., 0].T
    parts = (batch.values[:, 0], batch.error[:, 0], batch.converged, running, torch.zeros_like(batch.converged))
    return [part.cpu() for part in parts]


def _joined(batches: Sequence[Sequence[Tensor]], times: tuple[float, ...]) -> LargestExponents:
    values, error, converged, running, prolonged = (torch.cat(parts) for parts in zip(*batches, strict=True))
    mean = running.sum(dim=0) / max(1, int(values.isfinite().sum()))
    return LargestExponents(values, error, converged, mean, times, prolonged)


@dataclass(frozen=True)
class MotionType:
    """The motion of one image's state within a window of time.

    Args:
        kind: `rests`, `oscillates`, `drifts`, `wanders` or `diverges`.
        moved: sum_n |d_n| / |x|, the length of its path.
        straight: |sum_n d_n| / sum_n |d_n|, 1 for a straight line and 0 for a loop.
        turn: the lowest autocorrelation of displacements, and `lag` the number of steps after which it occurs: half a
            period of an oscillation.
        margin: the median of p_1 - p_2.
        answers: the classes that the head predicts along the path.
        between: whether it is between two classes.
    """

    kind: str
    moved: float
    straight: float
    turn: float
    lag: int
    margin: float
    answers: tuple[int, ...]
    between: bool


@torch.no_grad()
def classify_motion(model: ImageModel, state: Tokens, x0: Tokens, t: float) -> list[MotionType]:
    """Continue trajectories from x(t) for `WINDOW` horizons in the model's own steps, and classify each."""
    config = model.solver_config.stretched(WINDOW).replace(grid="uniform")
    states = integrate(model.field.dynamics(x0), state, config, t, save="all").states
    probabilities = torch.stack([model.readout(reached) for reached in states]).softmax(dim=-1)
    path = torch.stack([reached.flatten(1) for reached in states])
    return [classify_path(path[:, i], probabilities[:, i]) for i in range(len(state))]


def classify_path(path: Tensor, probabilities: Tensor) -> MotionType:
    """The motion of a path [time, dim] with the class probabilities [time, label] along it."""
    displacements = path.diff(dim=0).double()
    length = displacements.norm(dim=1).sum().item()
    moved = length / max(path[0].norm().item(), 1e-30)
    straight = (path[-1] - path[0]).norm().item() / max(length, 1e-30)
    turn, lag = _lowest_autocorrelation(displacements)
    if not torch.isfinite(path).all():
        kind = "diverges"
    elif moved < STILL:
        kind = "rests"
    elif turn < TURNS:
        kind = "oscillates"
    else:
        kind = "drifts" if straight > STRAIGHT else "wanders"
    best = probabilities.topk(2, dim=-1)
    margin = (best.values[:, 0] - best.values[:, 1]).median().item()
    answers = tuple(best.indices[:, 0].unique().tolist())
    return MotionType(kind, moved, straight, turn, lag, margin, answers, margin < UNDECIDED or len(answers) > 1)


def _lowest_autocorrelation(displacements: Tensor) -> tuple[float, int]:
    """min_k sum_n <d_n, d_{n+k}> / sqrt( sum_n |d_n|^2 sum_n |d_{n+k}|^2 ), k up to half the window, and that k."""
    products = displacements @ displacements.T
    size = products.diagonal()
    correlations = {
        k: (products.diagonal(k).sum() / (size[:-k].sum() * size[k:].sum()).sqrt().clamp_min(1e-300)).item()
        for k in range(1, len(displacements) // 2 + 1)
    }
    lag = min(correlations, key=correlations.__getitem__)
    return correlations[lag], lag
