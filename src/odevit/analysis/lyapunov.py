"""lambda = lim 1/t log( |v(t)| / |v(0)| ), dv/dt = (df/dx) v: how fast neighbouring trajectories diverge or meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.base import differentiable_dynamics
from odevit.analysis.significance import standard_error
from odevit.core.base import Dynamics, Field, FixedStepSolver, Solver
from odevit.core.solve import Equation
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.errors import DURATION, ConfigError, integer, real
from odevit.objectives.vectors import norms, random_normal, units
from odevit.tokens import Tokens

BLOCKS = 10
"""Blocks of time into which a measurement is cut for its error."""
TOLERANCE = 0.05
"""An exponent has converged when its error is at most this, in units of the growth rates of which it is the mean."""


@dataclass(frozen=True)
class Exponents:
    """lambda_1, ..., lambda_k of each sample, per unit of time, and whether they can be trusted.

    Args:
        values: [batch, k], in the order of QR, the largest first once it has converged. NaN where the trajectory is not
            finite; `running` shows when.
        error: [batch, k], the larger of two. Noise: the standard error from the means of `BLOCKS` blocks of time.
            Drift: the distance of the mean of the second half from the whole, which is large if directions were still
            turning at first. Neither includes correlations as long as the measurement, nor the solver's error.
        converged: [batch]; whether state, values and errors are finite, and every error is at most `TOLERANCE` times
            the mean size of the local growth rates |log growth| / h, or times 1 / horizon. The latter means that the
            growth over the whole horizon is known within 5%, so that exponents of zero can converge.
        running: [steps, batch, k], the estimate after each step.
        times: the ends of those steps; the last one is the time of `state`.
        state: the end of the trajectory.
        frame: [batch, k, ...], the orthonormal tangent vectors there. With all three a measurement can be continued.
    """

    values: Tensor
    error: Tensor
    converged: Tensor
    running: Tensor
    times: tuple[float, ...]
    state: Tensor
    frame: Tensor

    @property
    def maximal(self) -> Tensor:
        """max_i lambda_i, one number per sample."""
        return self.values.amax(dim=1)


@dataclass(frozen=True)
class ClassMean:
    """The mean over the samples of a class, its standard error (None for a single sample), and their number."""

    mean: float
    error: float | None
    count: int


@dataclass(frozen=True)
class Growth:
    """g_n = 1/h log( |D step v| / |v| ), the growth rate of a small perturbation during step n; negative: it shrinks.

    Args:
        rates: [steps, batch]; their mean is the exponent.
        times: t_0, ..., t_N, between which the steps lie.
        exponents: the measurement they come from, with its error and whether it converged.
    """

    rates: Tensor
    times: tuple[float, ...]
    exponents: Exponents


def maximal_exponent(field: Equation, x0: Tensor, *, horizon: float, steps: int, **settings: Any) -> Exponents:
    """lambda_1 = 1/T log( |v(T)| / |v(0)| ), the growth of a small perturbation over a time T, per unit of time.

    Negative: it dies out. Positive: it grows, and the trajectory cannot be predicted beyond its Lyapunov time. A random
    perturbation turns towards the direction that grows fastest: over a long time its growth is the largest one, over a
    short time an average of directions, unless `transient` gives it time to turn. For the exponent at the rest point of
    an image, begin at the image with a transient of several horizons. The arguments are those of `lyapunov_spectrum`.
    """
    return lyapunov_spectrum(field, x0, 1, horizon=horizon, steps=steps, **settings)


@torch.no_grad()
def lyapunov_spectrum(
    field: Equation,
    x0: Tensor,
    k: int,
    *,
    horizon: float,
    steps: int,
    solver: str | Solver = "rk4",
    transient: float = 0.0,
    t0: float = 0.0,
    anchor: Tensor | None = None,
    tokens: slice | None = None,
    frame: Tensor | None = None,
    seed: int = 0,
) -> Exponents:
    """lambda_i = 1/T sum_n log R_ii(n), Q(n+1) R(n) = D step(x_n) Q(n): the k leading exponents (Benettin et al. 1980).

    Tangent vectors go through the derivative of the solver's own step and are made orthonormal after each one. These
    are the exponents of the map that the model iterates; they differ from those of its equation by O(h^order). For k
    the dimension of the state they sum to the mean divergence of the field along the trajectory. Every sample begins
    with the same random directions, so its exponents do not depend on its batch.

    Args:
        x0: the first states [batch, ...].
        k: the number of exponents; the cost of a step grows with it.
        horizon, steps: T, the time over which growth is counted, and the steps of the solver in it.
        transient: a time before it, in steps of nearly the same size, during which growth is not counted.
        t0: the time at x0, for fields that depend on time.
        anchor: x(0) of the trajectory, to which the leak pulls, where x0 is a later state.
        tokens: the perturbation begins in these tokens only, such as `layout.cls`; the dynamics spread it.
        frame: the first tangent vectors [batch, k, ...]; random ones unless given.
        seed: of the random directions; the global generator is left alone.
    """
    method, problems = make_solver(solver), _problems(x0, k, horizon, steps, transient, tokens, frame)
    if not isinstance(method, FixedStepSolver):
        problems.insert(0, f"{type(method).__name__} chooses its own steps; expected fixed ones, such as solver='rk4'")
    if problems or not isinstance(method, FixedStepSolver):
        raise ConfigError("lyapunov_spectrum", problems)
    dynamics = differentiable_dynamics(field, x0 if anchor is None else anchor)
    # Forward derivatives refuse an expanded state, whose samples share memory.
    x = x0.detach().contiguous()
    frame, _ = _orthonormal(_random_frame(x, k, tokens, seed) if frame is None else frame.detach())

    h, begin = horizon / steps, t0 + transient
    warm_up = math.ceil(transient / h)
    for n in range(warm_up):
        x, frame, _ = _push(method, dynamics, x, frame, t0 + n * transient / warm_up, transient / warm_up)
    growth = []
    for n in range(steps):
        x, frame, logs = _push(method, dynamics, x, frame, begin + n * h, h)
        growth.append(logs)

    rates = torch.stack(growth) / h
    running = rates.cumsum(dim=0) / torch.arange(1, steps + 1, device=x.device).view(-1, 1, 1)
    error = _uncertainty(rates)
    small = error <= TOLERANCE * rates.abs().mean(dim=0).clamp_min(1.0 / horizon)
    finite = torch.isfinite(running[-1]).all(dim=1) & torch.isfinite(x.reshape(len(x), -1)).all(dim=1)
    return Exponents(
        values=running[-1],
        error=error,
        converged=small.all(dim=1) & finite,
        running=running,
        times=tuple(begin + n * h for n in range(1, steps + 1)),
        state=x,
        frame=frame,
    )


def local_growth(field: Field, x0: Tokens, solver_config: SolverConfig, *, seed: int = 0) -> Growth:
    """g_n along the path from x0 to the horizon: the terms of which the maximal exponent is the mean.

    Args:
        field: f of dx/dt = f(x, t).
        x0: the starts of the paths [batch, token, dim], to which the leak pulls.
        solver_config: the steps that are differentiated, two at least; RK4 in place of an adaptive solver.
        seed: of the direction in which the perturbation begins.
    """
    solver_config = with_fixed_steps(solver_config)
    horizon, steps = solver_config.horizon, max(2, solver_config.steps)
    exponents = maximal_exponent(field, x0, horizon=horizon, steps=steps, solver=solver_config.solver, seed=seed)
    # The running mean after n steps is r_n: the step itself contributed n r_n - (n - 1) r_{n-1}.
    sums = exponents.running[..., 0] * torch.arange(1, steps + 1, device=x0.device).unsqueeze(-1)
    rates = torch.cat([sums[:1], sums.diff(dim=0)])
    return Growth(rates, (0.0, *exponents.times), exponents)


def with_fixed_steps(solver_config: SolverConfig) -> SolverConfig:
    """A config whose steps can be differentiated: the one given, or RK4 in place of an adaptive solver."""
    return solver_config if solver_config.is_fixed else solver_config.replace(solver="rk4")


def lyapunov_time(exponent: Tensor) -> Tensor:
    """1 / lambda, the time in which a perturbation grows by e; infinite where lambda <= 0."""
    return torch.where(exponent <= 0, torch.inf, 1.0 / exponent)


def divergence_step(exponent: Tensor, steps: int, horizon: float) -> Tensor:
    """The first step n with t_n = n T / N >= 1 / lambda: by then a perturbation has grown by e. -1 where never.

    Args:
        exponent: lambda, of any shape.
        steps, horizon: N and T of the integration in question.
    """
    grid = torch.linspace(0.0, horizon, steps + 1, dtype=torch.float64, device=exponent.device)
    first = torch.searchsorted(grid, lyapunov_time(exponent).double())
    return torch.where(first > steps, -1, first)


def by_class(values: Tensor, labels: Tensor) -> dict[int, ClassMean]:
    """Mean, standard deviation / sqrt(n), and n of each class that is present.

    Args:
        values: one number per sample [batch]; a NaN makes the mean of its class NaN.
        labels: the class of each sample [batch].
    """
    if values.ndim != 1 or values.shape != labels.shape:
        raise ValueError(
            f"values {list(values.shape)} and labels {list(labels.shape)}; expected one number and one class per "
            "sample, such as exponents.maximal"
        )
    groups = {label: values[labels == label].double() for label in labels.unique().tolist()}
    return {label: ClassMean(group.mean().item(), standard_error(group), len(group)) for label, group in groups.items()}


def _push(
    solver: FixedStepSolver, dynamics: Dynamics, x: Tensor, frame: Tensor, t: float, h: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of a state and its tangent vectors: the next of both, and the logarithms of the vectors' growth."""
    here = dynamics.for_step(t, t + h)

    def push(v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jvp(lambda state: solver.step(here, state, t, h).to(x.dtype), (x,), (v,))[:2]

    if frame.shape[1] == 1:
        after, pushed = push(frame[:, 0])
        return after, *_orthonormal(pushed.unsqueeze(1))
    # The state does not depend on the direction: vmap returns k views of the same one.
    (after, *_), pushed = torch.func.vmap(push, in_dims=1, out_dims=(0, 1))(frame)
    return after, *_orthonormal(pushed)


def _orthonormal(frame: Tensor) -> tuple[Tensor, Tensor]:
    """Q and log |R_ii| [batch, k] of the vectors of a frame [batch, k, ...]."""
    if frame.shape[1] == 1:
        # QR is slow for one long column.
        return units(frame), norms(frame).unsqueeze(1).double().log()
    columns, triangle = torch.linalg.qr(frame.reshape(*frame.shape[:2], -1).mT)
    return columns.mT.reshape(frame.shape), triangle.diagonal(dim1=1, dim2=2).abs().double().log()


def _random_frame(x: Tensor, k: int, tokens: slice | None, seed: int) -> Tensor:
    frame = random_normal((1, k, *x.shape[1:]), seed).to(x)
    if tokens is not None:
        inside = torch.zeros_like(frame)
        inside[:, :, tokens] = 1.0
        frame = frame * inside
    return frame.expand(len(x), *frame.shape[1:])


def _uncertainty(rates: Tensor) -> Tensor:
    """max( std(block means) / sqrt(blocks), |mean of the second half - mean| ) of rates [steps, ...]."""
    means = torch.stack([block.mean(dim=0) for block in rates.tensor_split(min(BLOCKS, len(rates)))])
    noise = means.std(dim=0) / math.sqrt(len(means))
    drift = (rates[len(rates) // 2 :].mean(dim=0) - rates.mean(dim=0)).abs()
    return torch.maximum(noise, drift)


def _problems(
    x0: Tensor, k: int, horizon: float, steps: int, transient: float, tokens: slice | None, frame: Tensor | None
) -> list[str]:
    problems = DURATION.problem("horizon", horizon) + real(minimum=0).problem("transient", transient)
    problems += integer(2).problem("steps", steps, "the error compares blocks of time")
    if frame is not None and tokens is not None:
        problems.append("frame and tokens both set where the perturbation begins; pass one of them")
    if frame is not None and frame.shape != (len(x0), k, *x0.shape[1:]):
        problems.append(f"frame {list(frame.shape)}; expected {[len(x0), k, *x0.shape[1:]]}, [batch, k, ...]")
    room = x0[0].numel() if tokens is None else x0[0, tokens].numel() if x0.ndim > 1 else 0
    if not 1 <= k <= room:
        where = "the state has" if tokens is None else f"tokens={tokens} of {list(x0.shape)} have"
        problems.append(f"k={k}; expected 1 or more, and at most the {room} dimensions that {where}")
    return problems
