"""a_j(t) = sum_i w_i P_ij(x(t)): what a model looks at while it integrates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from odevit.analysis.base import frozen
from odevit.core.base import Dynamics, Solver
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
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
        rolled: sum_i w_i R_ij [time, batch, row, column], R the rollout of all maps up to and with this one; when asked
            for.
    """

    times: tuple[float, ...]
    heads: Tensor
    states: tuple[Tokens, ...]
    query: str
    rolled: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """The mean over heads, [time, batch, row, column]."""
        return self.heads.mean(dim=2)


@torch.no_grad()
def attention_over_time(
    model: ImageModel,
    pixels: Pixels,
    solver_config: SolverConfig | None = None,
    *,
    steps: int | None = None,
    horizon: float | None = None,
    solver: str | Solver | None = None,
    rolled: bool = False,
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
        rolled: whether the rollout of the maps is wanted too; a step h leaves the share 1 / (1 + h) where it is.
    """
    assert isinstance(model, nn.Module)  # every Askable is one
    with frozen(model):
        x0, solver_config = (
            model.embed(pixels),
            (solver_config or model.solver_config).replace(solver=solver, steps=steps, horizon=horizon),
        )
        dynamics, solution = model.field.dynamics(x0), model.depth(x0, solver_config, save="all")
        if not solution.ok:
            raise ValueError(solution.status)
        maps = (_first_map(dynamics, state, t) for state, t in zip(solution.states, solution.times, strict=True))
        kept = [1.0 / (1.0 + later - t) for t, later in pairwise(solution.times)]
        kept.append(kept[-1])  # the map at the end has no step of its own
        layout = model.layout(*pixels.shape[-2:])
        return attention_path(
            solution.times, solution.states, maps, layout, model.readout_weights, residual=kept if rolled else None
        )


def attention_path(
    times: Iterable[float],
    states: Sequence[Tokens],
    maps: Iterable[AttentionMap],
    layout: TokenLayout,
    reader: Reader,
    *,
    residual: Sequence[float] | None = None,
) -> AttentionPath:
    """a_j = sum_i w_i P_ij over the patches j, of states and the map that each of them makes, see `AttentionPath`.

    The states have the width that `reader` expects. Maps are taken one after the other: from a generator, only one is
    alive at a time. With `residual`, one share for each map, they are rolled out as well, see `rollout`.
    """
    rows, query = [], ""
    rolls: list[Tensor] = []
    rolled: Tensor | None = None
    for n, (state, attention) in enumerate(zip(states, maps, strict=True)):
        weights, query = reader(state)
        row = torch.einsum("bi,bhij->bhj", weights.to(attention), attention)
        rows.append(row[..., layout.patches].unflatten(-1, layout.grid))
        if residual is not None:
            rolled = _rolled_on(rolled, attention, residual[n])
            row = torch.einsum("bi,bij->bj", weights.to(rolled), rolled)
            rolls.append(row[..., layout.patches].unflatten(-1, layout.grid))
    whole = torch.stack(rolls) if rolls else None
    return AttentionPath(tuple(map(float, times)), torch.stack(rows), tuple(states), query, whole)


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
    rolled: Tensor | None = None
    for attention, share in zip(maps, shares, strict=True):
        rolled = _rolled_on(rolled, attention, share)
    assert rolled is not None  # there is at least one map
    return rolled


def _rolled_on(rolled: Tensor | None, attention: AttentionMap, share: float) -> Tensor:
    """A R, A = r I + (1 - r) mean_h P; A alone at the beginning."""
    identity = torch.eye(attention.shape[-1], device=attention.device, dtype=attention.dtype)
    onward = share * identity + (1.0 - share) * attention.mean(dim=1)
    return onward if rolled is None else onward @ rolled


def _first_map(dynamics: Dynamics, state: Tokens, t: float) -> AttentionMap:
    """P(x), the first map that one evaluation of the field makes; what comes after it in the field is not computed."""
    seen: list[AttentionMap] = []
    watched = dynamics.with_attention_hook(seen.append)
    for name in watched.components:
        watched.component(name, state, t)
        if seen:
            return seen[0]
    raise ValueError("the field makes no attention maps; expected one with attention, such as VectorField")
