"""|dG/dx| <= |W_O| sqrt( sum_h b_h^2 ): how strongly attention can separate two neighbouring states, at most."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from odevit.field.attention import Attention, CosineAttention, DotProductAttention
from odevit.objectives import g
from odevit.shapes import Tokens


@torch.no_grad()
def attention_bound(attention: Attention, x: Tokens) -> Tensor:
    """|dG/dx|_2 <= |W_O| sqrt( sum_h b_h^2 ), one number a sample [batch], with

        b_h = |P| |W_V| + s |V - mean V| ( max_i g_1(P_i) |(K - mean K) W_Q| + |diag(g_1(P_i)) Q W_K| ).

    For a head O = P V, P = softmax(S), S = s Q K^T, and a change dX of the tokens, in Frobenius norms over them:

    - dO = P dV + dP V, and |P dV| <= |P| |W_V| |dX|.
    - Row i: dP_i = J_i dS_i with J_i = diag(P_i) - P_i P_i^T, symmetric, |J_i| <= g_1(P_i) <= 1/2 (Yudin et al. 2025).
    - J_i 1 = 0, so V may be centred: |dP V| <= |V - mean V| |diag(g_1) dS|, and so may K, whose mean moves a row of
      scores as a whole.
    - dS = s (dQ K^T + Q dK^T) = s (dX (K W_Q)^T + Q W_K dX^T). Each row of the first part belongs to one token and gets
      at most the largest g_1; the second part takes its rows' own.
    - Heads stand side by side, so their squares add up; W_O acts on the whole.

    What JaSMin pushes down is g_1, and with it everything here but the first term. Evaluated in double precision, so
    that rounding does not undo the bound.

    Args:
        attention: dot-product attention, `field.attention`.
        x: what it is given, after the norm.
    """
    # Cosine attention has the same matrices, but other scores.
    if not isinstance(attention, DotProductAttention) or isinstance(attention, CosineAttention):
        raise ValueError(
            f"a {type(attention).__name__} was given; expected DotProductAttention: the bound is about attention='dot'"
        )
    exact = copy.deepcopy(attention).double()
    projections = (exact.q_proj, exact.k_proj, exact.v_proj)
    Q, K, V = (exact.split(projection(x.double())) for projection in projections)
    W_Q, W_K, W_V = (projection.weight.unflatten(0, (exact.heads, exact.head_dim)) for projection in projections)
    scale = exact.head_dim**-0.5
    P = (scale * Q @ K.mT).softmax(dim=-1)
    # A single token has nothing to choose from: its row is constant.
    g_1 = g(P, 1) if x.shape[1] > 1 else torch.zeros_like(Q[..., 0])

    through_queries = g_1.amax(dim=-1) * _norm(_centred(K) @ W_Q)
    through_keys = _norm(g_1.unsqueeze(-1) * Q @ W_K)
    head = _norm(P) * _norm(W_V) + scale * _norm(_centred(V)) * (through_queries + through_keys)
    return _norm(exact.o_proj.weight) * head.norm(dim=-1)


def _norm(matrices: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrices, ord=2)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=-2, keepdim=True)
