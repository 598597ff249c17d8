"""min_g |x_N(T; g) - x(T)|^2: a time grid for few steps, fitted to trajectories."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.analysis.base import frozen
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, integer
from odevit.tokens import Pixels

FINE = 8
"""The reference makes this many times more steps."""
FIRST, LAST = 0.8, 0.05
"""The change of a step's log-length that is tried, at first and at the end of the search."""


@dataclass(frozen=True)
class FittedGrid:
    """A grid, and the distance of the last states from those of a fine reference, relative to |x(T) - x(0)|.

    Args:
        grid: shares of the horizon from 0 to 1, for `model.solver_config.replace(grid=...)` and the key `grid` of a
            configuration.
        error, uniform_error: with this grid and with the uniform one, on the images that it was fitted to.
    """

    grid: tuple[float, ...]
    error: float
    uniform_error: float


@torch.no_grad()
def fit_grid(model: ImageModel, images: Pixels, solver_config: SolverConfig | None = None) -> FittedGrid:
    """The grid of N steps that ends nearest to where many more steps end.

    The step lengths are T softmax(a), so that times increase for every a. Times are Python floats in a solver, so that
    it compiles and exports; a is therefore not trained with the weights but found by a coordinate search that starts
    at the uniform grid and makes one step longer or shorter while that helps. It takes N to a few dozen N solves and no
    gradient.

    Args:
        model: a model with a trajectory; it is not changed.
        images: normalised pixels to fit to; a few hundred are enough.
        solver_config: the solver, its N steps and its horizon; the model's own unless given.
    """
    solver_config = model.solver_config if solver_config is None else solver_config
    _ = model.field  # a model without a trajectory is refused
    problems = integer(2).problem("steps", solver_config.steps)
    if not solver_config.is_fixed:
        problems.append(
            f"{solver_config.name} chooses its own steps; pass a solver of fixed steps: SolverConfig('heun', 4, 6.0)"
        )
    if problems:
        raise ConfigError("fit_grid", problems)
    assert isinstance(model, nn.Module)
    with frozen(model):
        x0 = model.embed(images)
        end = model.follow(x0, solver_config.replace(steps=FINE * solver_config.steps, grid="uniform")).state
        moved = (end - x0).norm()

        def error(lengths: list[float]) -> float:
            distance: Tensor = (model.follow(x0, solver_config.replace(grid=_shares(lengths))).state - end).norm()
            return float(distance / moved)

        best = [0.0] * solver_config.steps
        uniform = least = error(best)
        by = FIRST
        while by > LAST:
            improved = False
            for n, sign in itertools.product(range(solver_config.steps), (1, -1)):
                trial = [a + sign * by * (i == n) for i, a in enumerate(best)]
                if (found := error(trial)) < least:
                    best, least, improved = trial, found, True
            by = by if improved else by / 2
    return FittedGrid(_shares(best), least, uniform)


def _shares(logarithms: list[float]) -> tuple[float, ...]:
    """The times of steps whose lengths are softmax(a), as shares of the horizon."""
    lengths = torch.tensor(logarithms, dtype=torch.float64).softmax(0).cumsum(0).tolist()
    return (0.0, *lengths[:-1], 1.0)
