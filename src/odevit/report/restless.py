"""sum |d_n|, <d_n, d_{n+k}>, p_1 - p_2: what trajectories do that do not come to rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.subject import Subject
from odevit.shapes import Tokens
from odevit.solver import solve

WINDOW = 4
"""Horizons over which they are watched."""
STILL = 1e-3
"""A trajectory that moves by less than this share of its norm within the window rests."""
TURNS = -0.5
"""One whose displacements have an autocorrelation below this, at some lag, turns round and oscillates."""
STRAIGHT = 0.5
"""One whose net displacement is more than this share of its path drifts; what does neither wanders."""
UNDECIDED = 0.1
"""An image whose median margin p_1 - p_2 is below this, or whose answer changes, sits between two classes."""


@dataclass(frozen=True)
class Motion:
    """What one image does.

    Args:
        kind: `rests`, `oscillates`, `drifts`, `wanders` or `diverges`.
        moved: sum_n |d_n| / |x|, the way it makes within the window.
        straight: |sum_n d_n| / sum_n |d_n|, 1 for a straight line and 0 for a loop.
        turn: the lowest autocorrelation of displacements, and `lag` the number of steps after which it occurs: half a
            period of an oscillation.
        margin: the median of p_1 - p_2.
        answers: the classes it is given within the window.
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
def watch(subject: Subject, state: Tokens, x0: Tokens, t: float) -> list[Motion]:
    """Carry trajectories on for `WINDOW` horizons with the model's own steps, and say what each does.

    Args:
        subject: the model taken apart.
        state: where they are at the time t.
        x0: where they started.
        t: how long they have been under way.
    """
    solution = solve(
        subject.field.dynamics(x0),
        state,
        solver=subject.solver,
        steps=WINDOW * subject.steps,
        t0=t,
        t1=t + WINDOW * subject.horizon,
        save="all",
    )
    logits = torch.stack([subject.logits(each) for each in solution.states]).softmax(dim=-1)
    path = torch.stack([each.flatten(1) for each in solution.states])
    return [classify(path[:, i], logits[:, i]) for i in range(len(state))]


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
    found: Sequence[float] = [
        (products.diagonal(k).sum() / (size[:-k].sum() * size[k:].sum()).sqrt().clamp_min(1e-300)).item()
        for k in range(1, len(displacements) // 2 + 1)
    ]
    lowest = min(range(len(found)), key=found.__getitem__)
    return found[lowest], lowest + 1
