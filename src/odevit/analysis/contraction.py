"""r = min |d| with argmax z(x + d) != argmax z(x): the smallest change of a state that changes the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.errors import ConfigError, integer, real
from odevit.objectives.vectors import norms, random_normal, units, wide
from odevit.tokens import Logits

OVERSHOOT = 0.02
"""A step goes this share beyond the linearised boundary, to test whether the answer changes there."""
HALVINGS = 12
"""Bisections of a bracket of the boundary."""


@dataclass(frozen=True)
class Radius:
    """The distance of each sample from another answer.

    Args:
        value: [batch], the shortest distance found that changes the answer, an upper bound of the true radius. Infinite
            where nothing within the limit changes it.
        error: [batch]; in the same direction, a distance shorter by this does not change the answer.
        direction: [batch, ...], a unit vector; zero where none was found.
        answer: [batch], the class of the unchanged state.
        rival: [batch], the class just beyond the boundary; -1 where none was found.
        random: [directions, batch], the distances along random directions, infinite beyond the limit. In many
            dimensions they are far longer than the shortest one.
    """

    value: Tensor
    error: Tensor
    direction: Tensor
    answer: Tensor
    rival: Tensor
    random: Tensor

    @property
    def found(self) -> Tensor:
        """Whether the answer could be changed within the limit [batch]."""
        return torch.isfinite(self.value)

    @property
    def median(self) -> Tensor:
        """The median distance along random directions [batch]; infinite where most of them change nothing."""
        return self.random.median(dim=0).values


@torch.no_grad()
def contraction_radius(
    logits: Callable[[Tensor], Logits],
    state: Tensor,
    *,
    iterations: int = 10,
    rivals: int = 5,
    directions: int = 8,
    limit: float = 10.0,
    seed: int = 0,
) -> Radius:
    """An upper bound of r = min |d| with argmax z(x + d) != argmax z(x), and the distances along random directions.

    While the answer is still a, d moves to the nearest boundary as linearised at x + d: d - m w / |w|^2, with the
    margin m = z_c - z_a, its gradient w, and the nearest rival c (DeepFool, Moosavi-Dezfooli et al. 2016). From beyond
    the boundary it moves halfway to its point nearest to x, (w.d - m) w / |w|^2, and so turns into a normal. One step
    is exact for a linear head. Bisection along the best direction gives the final value.

    Args:
        logits: states [batch, ...] to logits, each sample independently. It may include the integration from an earlier
            time. Put a model with dropout in evaluation mode first.
        state: x [batch, ...].
        iterations: the number of such steps.
        rivals: how many of the likeliest other classes are tried; each costs one backward pass per step.
        directions: how many random directions are tried, the same for every sample.
        limit: the largest distance, in units of |x| (of 1 at the origin).
        seed: of the random directions; the global generator is left alone.
    """
    x = state.detach()
    before = logits(x)
    counts = {"iterations": iterations, "rivals": rivals, "directions": directions}
    problems = [problem for name, count in counts.items() for problem in integer(1).problem(name, count)]
    problems += real(above=0).problem("limit", limit)
    if before.ndim != 2 or before.shape[-1] < 2:
        problems.append(f"logits {list(before.shape)}; expected [batch, label] with two labels or more")
    if problems:
        raise ConfigError("contraction_radius", problems)
    answer, size = before.argmax(dim=-1), norms(x)
    reach = limit * torch.where(size > 0, size, 1.0)

    def classes(d: Tensor) -> Tensor:
        return logits(x + d).argmax(dim=-1)

    d = _shortest_displacement(logits, x, answer, iterations, min(rivals, before.shape[-1] - 1), reach)
    crossings = [_crossing(d, classes, answer, norms(d), reach)]
    for drawn in random_normal((directions, 1, *x.shape[1:]), seed).to(x):
        # A random direction is hardly ever shorter than the best one, so the search begins at that length.
        crossings.append(_crossing(drawn.expand_as(x), classes, answer, crossings[0][0], reach))

    lengths, brackets, beyond, units_found = (torch.stack(parts) for parts in zip(*crossings, strict=True))
    best = lengths.argmin(dim=0), torch.arange(len(x), device=x.device)
    return Radius(
        value=lengths[best],
        error=brackets[best],
        direction=torch.where(wide(torch.isfinite(lengths[best]), x), units_found[best], 0.0),
        answer=answer,
        rival=beyond[best],
        random=lengths[1:],
    )


def _crossing(
    d: Tensor, classes: Callable[[Tensor], Tensor], answer: Tensor, start: Tensor, reach: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Length along d at which the answer changes, its error, the class beyond, and d / |d|.

    `start` is doubled until the answer changes or the reach is passed, then bisected. Infinite and -1 where it never
    changes.
    """
    unit = units(d)

    def beyond(length: Tensor) -> Tensor:
        return classes(wide(length, d) * unit)

    low = torch.zeros_like(reach)
    high = torch.where((start > 0) & (start < reach), start, reach / 64)
    changed = beyond(high) != answer
    while (~changed & (high < reach)).any():
        low = torch.where(changed, low, high)
        high = torch.where(changed, high, torch.minimum(2 * high, reach))
        changed = beyond(high) != answer
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        past = beyond(middle) != answer
        low, high = torch.where(past, low, middle), torch.where(past, middle, high)
    length, bracket = (torch.where(changed, distance, torch.inf) for distance in (high, high - low))
    return length, bracket, torch.where(changed, beyond(high), -1), unit


def _shortest_displacement(
    logits: Callable[[Tensor], Logits], x: Tensor, answer: Tensor, iterations: int, rivals: int, reach: Tensor
) -> Tensor:
    """The shortest d that changed the answer; where none did, the last one tried."""
    d, best, shortest = torch.zeros_like(x), torch.zeros_like(x), torch.full_like(reach, torch.inf)
    for n in range(iterations + 1):
        z, pull = torch.func.vjp(logits, x + d)[:2]
        crossed = z.argmax(dim=-1) != answer
        shorter = crossed & (norms(d) < shortest)
        best = torch.where(wide(shorter, d), d, best)
        shortest = torch.where(shorter, norms(d), shortest)
        if n < iterations:
            d = (1.0 + OVERSHOOT) * _aim(z, pull, d, answer, crossed, rivals)
            d = d * wide((reach / norms(d).clamp_min(torch.finfo(d.dtype).tiny)).clamp_max(1.0), d)
    return torch.where(wide(torch.isfinite(shortest), d), best, d)


def _aim(
    z: Logits, pull: Callable[[Tensor], tuple[Tensor]], d: Tensor, answer: Tensor, crossed: Tensor, rivals: int
) -> Tensor:
    """On to the linearised boundary nearest to x + d; from beyond it, half the way to its point nearest to x."""
    nearest, aim = torch.full_like(z[:, 0], torch.inf), d
    answered = answer.unsqueeze(-1)
    for rival in z.scatter(-1, answered, -torch.inf).topk(rivals, dim=-1).indices.split(1, dim=-1):
        versus = torch.zeros_like(z).scatter(-1, rival, 1.0).scatter(-1, answered, -1.0)
        margin, (w,) = (z * versus).sum(dim=-1), pull(versus)
        squared = norms(w).square().clamp_min(torch.finfo(w.dtype).tiny)
        onward = d - wide(margin / squared, w) * w
        foot = wide(((w * d).reshape(len(d), -1).sum(dim=1) - margin) / squared, w) * w
        distance = torch.where(crossed, norms(foot), norms(onward - d))
        # A flat margin has no direction to offer.
        nearer = (distance < nearest) & (norms(w) > 0)
        aim = torch.where(wide(nearer, d), torch.where(wide(crossed, d), (d + foot) / 2, onward), aim)
        nearest = torch.where(nearer, distance, nearest)
    return aim
