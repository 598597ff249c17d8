"""max_i log( g_1(P_i) / g_k(P_i) ): rows of attention whose softmax has a small Jacobian (eq. 9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.objectives.vectors import FLOOR, at_least_single
from odevit.solvers.penalties import PENALTIES, Penalty, Step
from odevit.tokens import AttentionMap


def g(rows: Tensor, k: int) -> Tensor:
    """g_k(p) = p_(k) (1 - p_(k) + p_(k+1)), p_(1) >= p_(2) >= ... the probabilities of a row, in any order.

    The k-th eigenvalue of the Jacobian diag(p) - p p^T of softmax is at most g_k(p) (Yudin et al. 2025), g_1 <= 1/2,
    and g_1 >= g_2 >= ... (The paper calls g_k the k-th largest component.)

    Args:
        rows: distributions along the last dimension.
        k: 1 or more, less than the number of keys.
    """
    if k < 1:
        raise ValueError(f"k={k}; expected 1 or more: g_1 is that of the largest probability of a row")
    _check_keys(k, rows.shape[-1])
    return _g(rows.topk(k + 1, dim=-1).values, k)


def jasmin(maps: AttentionMap, k: int = 2) -> Tensor:
    """mean over batch and heads of max_i log( g_1(P_i) / g_k(P_i) ); k = 0: of max_i log g_1(P_i).

    k >= 2 flattens rows: the loss is 0, its minimum, where the k + 1 largest probabilities are equal. k = 0 bounds the
    norm of the Jacobian itself, but log g_1 falls without limit as a row becomes one-hot: it drives rows whose largest
    probability is well above 1/2 to collapse.

    The paper sums over layers and heads; the mean does not depend on the size of the model. Its released code detaches
    the maps, so that there is no gradient. Probabilities below 1e-12 count as 1e-12, so the loss stays between -27 and
    27 and its gradient is finite for every map.

    Args:
        maps: attention maps with their gradient.
        k: 0, or from 2 to the number of keys less one.
    """
    _check_k(k)
    _check_keys(max(k, 1), maps.shape[-1])
    # Only the largest row has a gradient: the others are ranked without a graph.
    with torch.no_grad():
        sharpest = _sharpness(maps, k).argmax(dim=-1)
    index = sharpest[..., None, None].expand(*sharpest.shape, 1, maps.shape[-1])
    return _sharpness(maps.gather(-2, index), k).mean()


@PENALTIES.register("jasmin")
@dataclass(frozen=True)
class JaSMin(Penalty):
    """1/T int jasmin(P(t)) dt, the mean over the maps that each step makes: solve(..., penalties={"jasmin": JaSMin()}).

    Args:
        k: 0, or 2 and more; see `jasmin` for what each value does. 0 rewards collapse.
    """

    k: int = 2

    needs_attentions = True

    def __post_init__(self) -> None:
        _check_k(self.k)

    def running(self, step: Step) -> Tensor:
        if not step.attentions:
            raise ValueError(
                "JaSMin needs attention maps and the field made none; integrate a field with attention, such as "
                "VectorField, or leave this penalty out"
            )
        return torch.stack([jasmin(maps, self.k) for maps in step.attentions]).mean()


def _g(largest: Tensor, k: int) -> Tensor:
    a, b = largest[..., k - 1], largest[..., k]
    # 1 - a >= b, since probabilities sum to one. Where a rounds to 1, b is more exact than 1 - a.
    return a * (torch.maximum(1.0 - a, b) + b)


def _sharpness(maps: AttentionMap, k: int) -> Tensor:
    """log g_1 or log(g_1 / g_k) of each row, from its k + 1 largest probabilities alone."""
    largest = at_least_single(maps.topk(max(k, 1) + 1, dim=-1).values).clamp_min(FLOOR)
    log_g1 = _g(largest, 1).log()
    return log_g1 if k == 0 else log_g1 - _g(largest, k).log()


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise ValueError(f"k={k!r}; expected 0 or a whole number from 2 on")
    if k == 1:
        raise ValueError("k=1 compares g_1 with itself and is always 0; pass k=2, or k=0 for log g_1 alone")


def _check_keys(k: int, keys: int) -> None:
    if k + 1 > keys:
        raise ValueError(f"g_{k} needs the {k + 1} largest keys of a row and a row has {keys}; pass a smaller k")
