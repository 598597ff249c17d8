"""a_j(t) = sum_i w_i P_ij(x(t)): what a model looks at while it integrates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.analysis.subject import Subject, untouched
from odevit.distill.teacher import Teacher
from odevit.field.dynamics import Dynamics
from odevit.model.layout import TokenLayout
from odevit.model.modeling_odevit import OdeViTModel
from odevit.model.pooling import AttentionPooling, MeanPooling
from odevit.objectives.attention import mass_holders
from odevit.shapes import AttentionMap, Pixels, Tokens

CLS = "CLS"
MEAN = "mean of patches"
POOLING = "weighted mean of patches"


@dataclass(frozen=True)
class AttentionPath:
    """a_j(t) = sum_i w_i P_ij(x(t)) over the patches j, w_i the weight of token i in what the head reads.

    A head that reads CLS makes it the row of CLS. One that averages the patches makes it the attention that a patch
    receives from all of them, in the mean; one that weighs the patches, with the weights it would give them at that
    state. CLS and registers are left out of what is looked at, so that a row sums to the share that goes to the image.

    Args:
        times: of the states; for a teacher the numbers 1, ..., L of its layers.
        heads: [time, batch, head, row, column] on the grid of patches.
        states: the states that the maps were made from; for a layer, what it receives.
        query: who looks, in words: `CLS`, `MEAN` or `POOLING`.
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
    subject: Subject,
    pixels: Pixels,
    *,
    steps: int | None = None,
    horizon: float | None = None,
    solver: str | None = None,
) -> AttentionPath:
    """a(t_n) at t_0, ..., t_N: one map for each state of the trajectory, the last one included.

    A step may evaluate attention several times, at states that belong to the method and not to the trajectory. Its
    first evaluation is the one at the state from which it starts, and the one meant here: P is a function of x(t),
    computed from the saved states, so that every solver gives the same kind of map, the adaptive ones as well.

    Args:
        subject: the model taken apart.
        pixels: normalised images [batch, channel, height, width].
        steps, horizon, solver: how to integrate; as the model does unless told otherwise.
    """
    with untouched(subject.model):
        x0 = subject.embed(pixels)
        solution = subject.solve(x0, save="all", steps=steps, horizon=horizon, solver=solver)
        if not solution.ok:
            raise ValueError(solution.status)
        dynamics = subject.field.dynamics(x0)
        maps = (_map(dynamics, state, t) for state, t in zip(solution.states, solution.times, strict=True))
        reader = _Reader(subject.model, subject.layout)
        return _path(solution.times, solution.states, maps, subject.outside, reader)


@torch.no_grad()
def teacher_attention(teacher: Teacher, pixels: Pixels) -> AttentionPath:
    """a of each layer of a teacher; the layers 1, ..., L stand in the place of time."""
    output, layout = teacher(pixels, attentions=True), teacher.layout(pixels)
    assert output.attentions is not None  # asked for
    layers = range(1, teacher.num_layers + 1)
    return _path(layers, output.states[:-1], output.attentions, lambda state: state, _Reader(teacher.model, layout))


def rollout(maps: Iterable[AttentionMap], residual: float | Sequence[float] = 0.5) -> Tensor:
    """R = A_N ... A_1, A_n = r_n I + (1 - r_n) mean_h P_n: how much of each first token is in each last one.

    Attention rollout (Abnar and Zuidema 2020) for [batch, head, token, token] in the order of time; rows sum to one.
    It follows attention alone, as if values were the tokens themselves: a picture, no attribution.

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
    for each, share in zip(maps, shares, strict=True):
        rolled = (share * identity + (1.0 - share) * each.mean(dim=1)) @ rolled
    return rolled


def mass_threshold(rows: Tensor, mass: float = 0.6) -> Tensor:
    """The smallest set of keys that holds `mass` of each row, as a mask of the same shape (Caron et al. 2021, DINO).

    Args:
        rows: weights >= 0 along the last dimension; they need not sum to one, `mass` is a share of their sum.
        mass: in (0, 1].
    """
    if not 0.0 < mass <= 1.0:
        raise ValueError(f"mass={mass}; expected a share of the row in (0, 1], 1 takes every key")
    return mass_holders(rows, mass)


def _map(dynamics: Dynamics, state: Tokens, t: float) -> AttentionMap:
    """P(x), the first map that one evaluation of the field makes."""
    seen: list[AttentionMap] = []
    dynamics.observed_by(seen.append).forcing(state, t)
    if not seen:
        raise ValueError("the field makes no attention maps; expected one with attention, such as VectorField")
    return seen[0]


def _path(
    times: Iterable[float],
    states: Sequence[Tokens],
    maps: Iterable[AttentionMap],
    outside: Callable[[Tokens], Tokens],
    reader: _Reader,
) -> AttentionPath:
    """sum_i w_i P_ij over the patches j, one map after the other: only one is alive at a time."""
    rows = []
    for state, each in zip(states, maps, strict=True):
        row = torch.einsum("bi,bhij->bhj", reader.weights(outside(state)).to(each), each)
        rows.append(row[..., reader.layout.patches].unflatten(-1, reader.layout.grid))
    return AttentionPath(tuple(map(float, times)), torch.stack(rows), tuple(states), reader.query)


class _Reader:
    """How much each token counts in what the head of a model reads, and the word for it."""

    def __init__(self, model: nn.Module, layout: TokenLayout) -> None:
        self.layout = layout
        # A classifier or a student may contain an encoder of ours, which says how it pools; others have CLS, or not.
        self.encoder = next((module for module in model.modules() if isinstance(module, OdeViTModel)), None)
        pooling = None if self.encoder is None else self.encoder.pooling
        if isinstance(pooling, AttentionPooling):
            self.query = POOLING
        else:
            self.query = CLS if layout.has_cls and not isinstance(pooling, MeanPooling) else MEAN

    def weights(self, state: Tokens) -> Tensor:
        """w [batch, token] at a state in the width of the head; they sum to one."""
        layout = self.layout
        # A student may have registers of its own behind its patches, which never reach the head.
        weights = state.new_zeros(len(state), len(layout))
        if self.query == CLS:
            weights[:, layout.cls] = 1.0
        elif self.query == MEAN:
            weights[:, layout.patches] = 1.0 / layout.num_patches
        else:
            assert self.encoder is not None
            assert isinstance(self.encoder.pooling, AttentionPooling)
            hidden = self.encoder.norm(state)[:, layout.patches]
            weights[:, layout.patches] = self.encoder.pooling.score(hidden).softmax(dim=1).squeeze(-1)
        return weights
