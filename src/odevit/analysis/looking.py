"""a_j(t) = sum_i w_i P_ij(x(t)): what a model looks at while it integrates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.analysis.untouched import untouched
from odevit.field.dynamics import Dynamics
from odevit.model import Askable
from odevit.solver import Solver, Way
from odevit.tokens import AttentionMap, Pixels, TokenLayout, Tokens

Reader = Callable[[Tokens], tuple[Tensor, str]]
"""A state to the weight of each token in what the head reads [batch, token], and who looks, in words (`reading`)."""


@dataclass(frozen=True)
class AttentionPath:
    """a_j(t) = sum_i w_i P_ij(x(t)) over the patches j, w_i the weight of token i in what the head reads.

    For a head that reads CLS it is the row of CLS. For one that averages the patches it is the mean attention that a
    patch receives from all of them; for one that weighs the patches, with the weights it would give them at that state.
    CLS and registers are left out of what is looked at, so that a row sums to the share that goes to the image.

    Args:
        times: of the states; for a teacher the numbers 1, ..., L of its layers.
        heads: [time, batch, head, row, column] on the grid of patches.
        states: the states that the maps were made from; for a layer, its input.
        query: who looks, in words: "CLS", "mean of patches" or "weighted mean of patches".
    """

    times: tuple[float, ...]
    heads: Tensor
    states: tuple[Tokens, ...]
    query: str

    @property
    def mean(self) -> Tensor:
        """The mean over heads, [time, batch, row, column]."""
        return self.heads.mean(dim=2)


@torch.no_grad()
def attention_over_time(
    model: Askable,
    pixels: Pixels,
    way: Way | None = None,
    *,
    steps: int | None = None,
    horizon: float | None = None,
    solver: str | Solver | None = None,
) -> AttentionPath:
    """a(t_n) at t_0, ..., t_N: one map for each state of the trajectory, the last one included.

    A step may evaluate attention several times, at states that belong to the method and not to the trajectory. Its
    first evaluation is the one at the state from which it starts, and the one meant here: P is a function of x(t),
    computed from the saved states, so that every solver gives the same kind of map, the adaptive ones as well.

    Args:
        model: a model with a trajectory.
        pixels: normalised images [batch, channel, height, width].
        way: how to integrate; the model's own unless given.
        steps, horizon, solver: exceptions to that way.
    """
    assert isinstance(model, nn.Module)  # every Askable is one
    with untouched(model):
        x0, way = model.embed(pixels), (way or model.way).but(solver=solver, steps=steps, horizon=horizon)
        dynamics, solution = model.field.dynamics(x0), model.depth(x0, way, save="all")
        if not solution.ok:
            raise ValueError(solution.status)
        maps = (_first_map(dynamics, state, t) for state, t in zip(solution.states, solution.times, strict=True))
        return attention_path(solution.times, solution.states, maps, model.layout(*pixels.shape[-2:]), model.reading)


def attention_path(
    times: Iterable[float], states: Sequence[Tokens], maps: Iterable[AttentionMap], layout: TokenLayout, reader: Reader
) -> AttentionPath:
    """a_j = sum_i w_i P_ij over the patches j, of states and the map that each of them makes, see `AttentionPath`.

    The states have the width that `reader` expects. Maps are taken one after the other: from a generator, only one is
    alive at a time.
    """
    rows, query = [], ""
    for state, attention in zip(states, maps, strict=True):
        weights, query = reader(state)
        row = torch.einsum("bi,bhij->bhj", weights.to(attention), attention)
        rows.append(row[..., layout.patches].unflatten(-1, layout.grid))
    return AttentionPath(tuple(map(float, times)), torch.stack(rows), tuple(states), query)


def rollout(maps: Iterable[AttentionMap], residual: float | Sequence[float] = 0.5) -> Tensor:
    """R = A_N ... A_1, A_n = r_n I + (1 - r_n) mean_h P_n: how much of each first token is in each last one.

    Attention rollout (Abnar and Zuidema 2020) for [batch, head, token, token] in the order of time; rows sum to one.
    It follows attention alone, as if values were the tokens themselves: a picture, not an attribution.

    Args:
        maps: one for each layer or step.
        residual: r, the share that goes past attention, the same for all or one for each map. The paper's 1/2 is for
            layers x + P x. A step x + h P x of an equation has r = 1 / (1 + h).
    """
    maps = list(maps)
    shares = list(residual) if isinstance(residual, Sequence) else [residual] * len(maps)
    if not maps or len(shares) != len(maps):
        raise ValueError(
            f"{len(maps)} maps and {len(shares)} residual shares; expected at least one map, and one share for all or "
            "one for each"
        )
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"residual={residual}; expected shares from 0 to 1: a step of the size h has 1 / (1 + h)")
    identity = torch.eye(maps[0].shape[-1], device=maps[0].device, dtype=maps[0].dtype)
    rolled = identity.expand(len(maps[0]), -1, -1)
    for attention, share in zip(maps, shares, strict=True):
        rolled = (share * identity + (1.0 - share) * attention.mean(dim=1)) @ rolled
    return rolled


def _first_map(dynamics: Dynamics, state: Tokens, t: float) -> AttentionMap:
    """P(x), the first map that one evaluation of the field makes."""
    seen: list[AttentionMap] = []
    dynamics.observed_by(seen.append).forcing(state, t)
    if not seen:
        raise ValueError("the field makes no attention maps; expected one with attention, such as VectorField")
    return seen[0]
