"""min_g |x_N(T; g) - x(T)|^2: a grid for few steps, learned from trajectories."""

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
"""How many times more steps the reference makes."""
FIRST, LAST = 0.8, 0.05
"""How much longer a step is made on trial, as a logarithm, at first and before the search ends."""


@dataclass(frozen=True)
class FittedGrid:
    """The grid, and the mean distance of the last states from those of a fine reference, relative to what was moved.

    Args:
        grid: shares of the horizon from 0 to 1; for `model.way.but(grid=...)`, and the key `grid` of a configuration.
        error, uniform_error: on the images that it was fitted to, with this grid and with the uniform one.
    """

    grid: tuple[float, ...]
    error: float
    uniform_error: float


@torch.no_grad()
def fit_grid(model: ImageModel, images: Pixels, solver_config: SolverConfig | None = None) -> FittedGrid:
    """The grid of N steps that ends nearest to where many more steps end.

    The step lengths are T softmax(a), so that times increase whatever a is. Times are plain numbers in a solver, which
    is what lets it compile and export; so a is not trained with the weights but searched for afterwards, one step
    length after the other, each made longer or shorter as long as that helps. It takes N to a few dozen N solves and no
    gradient, and can only improve on the uniform grid, which it starts from.

    Args:
        model: a model with a trajectory; it is left as it was.
        images: normalised pixels to fit to; a few hundred are enough.
        way: the solver, its N steps and its horizon; the model's own unless given.
    """
    solver_config = model.solver_config if solver_config is None else solver_config
    _ = model.field  # a model without a trajectory is refused
    problems = integer(2).problem("steps", solver_config.steps)
    if not solver_config.is_fixed:
        problems.append(
            f"the way ({solver_config}) chooses its own steps; pass one of fixed steps, such as Way('heun', 4, 6.0)"
        )
    if problems:
        raise ConfigError("fit_grid", problems)
    assert isinstance(model, nn.Module)
    with frozen(model):
        x0 = model.embed(images)
        end = model.depth(x0, solver_config.replace(steps=FINE * solver_config.steps, grid="uniform")).state
        moved = (end - x0).norm()

        def error(lengths: list[float]) -> float:
            off: Tensor = (model.depth(x0, solver_config.replace(grid=_shares(lengths))).state - end).norm()
            return float(off / moved)

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
