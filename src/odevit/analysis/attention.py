"""a_j(t) = sum_i w_i P_ij(x(t)): the attention to each patch over integration time."""

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

ReadoutWeights = Callable[[Tokens], tuple[Tensor, str]]
"""State -> weight of each token in the head's input [batch, token], and its name; see `ImageModel.readout_weights`."""


@dataclass(frozen=True)
class AttentionPath:
    """a_j(t) = sum_i w_i P_ij(x(t)) over the patches j, w_i the weight of token i in the head's input.

    For a head that reads CLS it is the row of CLS. For one that averages the patches it is the mean attention that a
    patch receives from all of them; for attention pooling, the mean with the pooling weights at that state. Attention
    to CLS and registers is left out, so a row sums to the share that goes to the image.

    Args:
        times: of the states; for a teacher the numbers 1, ..., L of its layers.
        heads: [time, batch, head, row, column] on the grid of patches.
        states: the states that the maps were made from; for a layer, its input.
        query: the tokens i: "CLS", "mean of patches" or "weighted mean of patches".
        rolled: sum_i w_i R_ij [time, batch, row, column], R the rollout of all maps up to and with this one; or None.
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

    A step may evaluate attention several times, at states inside the step. The maps here are computed from the saved
    states x(t_n), so that all solvers give the same kind of map.

    Args:
        model: a model with a trajectory.
        pixels: normalised images [batch, channel, height, width].
        solver_config: how to integrate; the model's own unless given.
        steps, horizon, solver: replace those of the config.
        rolled: compute the rollout of the maps too; a step h leaves the share 1 / (1 + h) where it is.
    """
    assert isinstance(model, nn.Module)  # every ImageModel is one
    config = (solver_config or model.solver_config).replace(solver=solver, steps=steps, horizon=horizon)
    with frozen(model):
        x0 = model.embed(pixels)
        dynamics, solution = model.field.dynamics(x0), model.follow(x0, config, save="all")
        if not solution.ok:
            raise ValueError(solution.status)
        maps = (_first_map(dynamics, state, t) for state, t in zip(solution.states, solution.times, strict=True))
        residual = [1.0 / (1.0 + later - t) for t, later in pairwise(solution.times)]
        residual.append(residual[-1])  # the map at the end has no step of its own
        layout = model.layout(*pixels.shape[-2:])
        return attention_path(
            solution.times, solution.states, maps, layout, model.readout_weights, residual=residual if rolled else None
        )


def attention_path(
    times: Iterable[float],
    states: Sequence[Tokens],
    maps: Iterable[AttentionMap],
    layout: TokenLayout,
    readout_weights: ReadoutWeights,
    *,
    residual: Sequence[float] | None = None,
) -> AttentionPath:
    """a_j = sum_i w_i P_ij over the patches j, from states and the attention map of each; see `AttentionPath`.

    The states have the width that `readout_weights` expects. Maps may come from a generator, so that only one is in
    memory at a time. With `residual`, one share for each map, they are rolled out as well, see `rollout`.
    """
    rows, rolls, query = [], list[Tensor](), ""
    rolled: Tensor | None = None
    for n, (state, attention) in enumerate(zip(states, maps, strict=True)):
        weights, query = readout_weights(state)
        rows.append(torch.einsum("bi,bhij->bhj", weights.to(attention), attention))
        if residual is not None:
            rolled = _roll_out(rolled, attention, residual[n])
            rolls.append(torch.einsum("bi,bij->bj", weights.to(rolled), rolled))
    heads, rollouts = (
        torch.stack(each)[..., layout.patches].unflatten(-1, layout.grid) if each else None for each in (rows, rolls)
    )
    assert heads is not None  # a path has at least one state
    return AttentionPath(tuple(map(float, times)), heads, tuple(states), query, rollouts)


def rollout(maps: Iterable[AttentionMap], residual: float | Sequence[float] = 0.5) -> Tensor:
    """R = A_N ... A_1, A_n = r_n I + (1 - r_n) mean_h P_n: the share of each first token in each last one.

    Attention rollout (Abnar and Zuidema 2020) for [batch, head, token, token] in the order of time; rows sum to one.
    It follows attention alone and ignores the values: an illustration, not an attribution.

    Args:
        maps: one for each layer or step.
        residual: r, the share that bypasses attention, the same for all or one for each map. The paper's 1/2 is for
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
    rolled = _roll_out(None, maps[0], shares[0])
    for attention, share in zip(maps[1:], shares[1:], strict=True):
        rolled = _roll_out(rolled, attention, share)
    return rolled


def _roll_out(rolled: Tensor | None, attention: AttentionMap, share: float) -> Tensor:
    """A R, A = r I + (1 - r) mean_h P; A alone at the beginning."""
    identity = torch.eye(attention.shape[-1], device=attention.device, dtype=attention.dtype)
    mixed = share * identity + (1.0 - share) * attention.mean(dim=1)
    return mixed if rolled is None else mixed @ rolled


def _first_map(dynamics: Dynamics, state: Tokens, t: float) -> AttentionMap:
    """P(x), the first attention map of one evaluation of the field; later components are not computed."""
    seen: list[AttentionMap] = []
    hooked = dynamics.with_attention_hook(seen.append)
    for name in hooked.components:
        hooked.component(name, state, t)
        if seen:
            return seen[0]
    raise ValueError("the field makes no attention maps; expected one with attention, such as VectorField")
