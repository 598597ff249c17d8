"""sum |d_n|, <d_n, d_{n+k}>, p_1 - p_2: what a trajectory does that does not come to rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.model import Askable
from odevit.solver import solve
from odevit.tokens import Tokens

WINDOW = 4
"""Horizons over which they are watched."""
STILL = 1e-3
"""A trajectory that moves by less than this share of its norm within the window rests."""
TURNS = -0.5
"""One whose displacements have an autocorrelation below this, at some lag, turns around and oscillates."""
STRAIGHT = 0.5
"""One whose net displacement is more than this share of its path drifts; what does neither wanders."""
UNDECIDED = 0.1
"""An image whose median margin p_1 - p_2 is below this, or whose answer changes, sits between two classes."""


@dataclass(frozen=True)
class Motion:
    """What one image does.

    Args:
        kind: `rests`, `oscillates`, `drifts`, `wanders` or `diverges`.
        moved: sum_n |d_n| / |x|, the length of its path within the window.
        straight: |sum_n d_n| / sum_n |d_n|, 1 for a straight line and 0 for a loop.
        turn: the lowest autocorrelation of displacements, and `lag` the number of steps after which it occurs: half a
            period of an oscillation.
        margin: the median of p_1 - p_2.
        answers: the classes that the head assigns within the window.
        between: whether it sits between two classes.
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
def watch(model: Askable, state: Tokens, x0: Tokens, t: float) -> list[Motion]:
    """Carry trajectories on for `WINDOW` horizons in the model's own steps, and say what each does.

    Args:
        model: in evaluation mode.
        state: x(t).
        x0: where they started.
        t: how long they have been under way.
    """
    way = model.way.times(WINDOW)
    dynamics = model.field.dynamics(x0)
    solution = solve(dynamics, state, solver=way.solver, steps=way.steps, t0=t, t1=t + way.horizon, save="all")
    probabilities = torch.stack([model.readout(reached) for reached in solution.states]).softmax(dim=-1)
    path = torch.stack([reached.flatten(1) for reached in solution.states])
    return [classify(path[:, i], probabilities[:, i]) for i in range(len(state))]


def classify(path: Tensor, probabilities: Tensor) -> Motion:
    """What a path [time, dim] with the answers [time, label] along it does."""
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
    return Motion(kind, moved, straight, turn, lag, margin, answers, margin < UNDECIDED or len(answers) > 1)


def _lowest_autocorrelation(displacements: Tensor) -> tuple[float, int]:
    """min_k sum_n <d_n, d_{n+k}> / sqrt( sum_n |d_n|^2 sum_n |d_{n+k}|^2 ), k up to half the window, and that k."""
    products = displacements @ displacements.T
    size = products.diagonal()
    correlations: Sequence[float] = [
        (products.diagonal(k).sum() / (size[:-k].sum() * size[k:].sum()).sqrt().clamp_min(1e-300)).item()
        for k in range(1, len(displacements) // 2 + 1)
    ]
    lowest = min(range(len(correlations)), key=correlations.__getitem__)
    return correlations[lowest], lowest + 1
