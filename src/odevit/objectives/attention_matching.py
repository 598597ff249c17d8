"""|P - Q| and KL(Q || P): losses between the attention maps of student and teacher."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.objectives.vectors import FLOOR, at_least_single
from odevit.tokens import AttentionMap


def attention_l1(student: AttentionMap, teacher: AttentionMap, *, mass: float = 0.6) -> dict[str, Tensor]:
    """mean over rows of sum_{j in S} |P_j - Q_j|, S the smallest set of keys that holds `mass` of the teacher's row Q.

    `mass` is a share of the row, which need not sum to one: `maps[:, :, layout.cls, layout.patches]` may be compared.
    The released code does that for the [CLS] row of the last layer, with soft thresholds of 0.5 for the student and 0.7
    for the teacher, a blur, and a sum over the batch. Different numbers of heads are averaged first.

    Args:
        student, teacher: attention maps; no gradient reaches the teacher's.
        mass: share of each row, in (0, 1]; 1 takes every key.

    Returns:
        `loss`, and `keys`: the mean number of keys in the sets.
    """
    p, q = _comparable(student, teacher)
    mask = mass_threshold(q, mass)
    distance = ((p - q).abs() * mask).sum(dim=-1)
    return {"loss": distance.mean(), "keys": mask.sum(dim=-1).mean(dtype=distance.dtype)}


def attention_kl(student: AttentionMap, teacher: AttentionMap) -> dict[str, Tensor]:
    """mean over rows of KL(Q || P) = sum_j Q_j log(Q_j / P_j), Q the teacher's row and P the student's.

    Rows are normalised to sum one first, so that a slice such as `maps[:, :, layout.cls, layout.patches]` can be
    compared; probabilities below 1e-12 count as 1e-12 in the logarithms. Different numbers of heads are averaged first.
    The teacher has no gradient.
    """
    p, q = (rows / rows.sum(dim=-1, keepdim=True).clamp_min(FLOOR) for rows in _comparable(student, teacher))
    divergence = (q * (q.clamp_min(FLOOR).log() - p.clamp_min(FLOOR).log())).sum(dim=-1)
    return {"loss": divergence.mean()}


def mass_threshold(rows: Tensor, mass: float = 0.6) -> Tensor:
    """The smallest set of keys that holds `mass` of each row, as a mask of the same shape (Caron et al. 2021, DINO).

    Args:
        rows: weights >= 0 along the last dimension; they need not sum to one, `mass` is a share of their sum.
        mass: in (0, 1].
    """
    if not 0.0 < mass <= 1.0:
        raise ValueError(f"mass={mass}; expected a share of the row in (0, 1], 1 takes every key")
    if mass == 1.0:
        # By rounding, the running sum may reach 1 before the last key.
        return torch.ones_like(rows, dtype=torch.bool)
    largest, order = rows.sort(dim=-1, descending=True)
    before = largest.cumsum(dim=-1) - largest
    chosen = before < mass * rows.sum(dim=-1, keepdim=True)
    return torch.zeros_like(chosen).scatter(-1, order, chosen)


def _comparable(student: AttentionMap, teacher: AttentionMap) -> tuple[Tensor, Tensor]:
    """Both maps with the same heads: their own, or one mean head where the numbers differ."""
    p, q = at_least_single(student), at_least_single(teacher.detach())
    if p.ndim != 4 or q.ndim != 4 or p.shape[0] != q.shape[0] or p.shape[2:] != q.shape[2:]:
        raise ValueError(
            f"attention maps of the student {list(student.shape)}, teacher {list(teacher.shape)}; expected two of "
            "[batch, head, query, key] that differ in their heads at most: cut both to the tokens they share with a "
            "TokenLayout"
        )
    return (p, q) if p.shape[1] == q.shape[1] else (p.mean(dim=1, keepdim=True), q.mean(dim=1, keepdim=True))
