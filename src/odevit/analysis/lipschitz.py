"""L(x) = |df/dx|_2: the local Lipschitz constant of a field, measured and bounded."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.base import differentiable_dynamics, jacobian
from odevit.core.attention import Attention
from odevit.core.solve import Equation
from odevit.objectives.bounds import dot_product
from odevit.objectives.jasmin import g
from odevit.objectives.vectors import norms, random_normal, spectral_norm, units
from odevit.tokens import Tokens


@dataclass(frozen=True)
class Estimate:
    """A value for each sample, and its relative change by the last iteration."""

    value: Tensor
    error: Tensor


@torch.no_grad()
def local_lipschitz(
    field: Equation, x: Tensor, t: float = 0.0, *, x0: Tensor | None = None, iterations: int = 30, seed: int = 0
) -> Estimate:
    """|J|_2 by power iteration on J^T J, J = df/dx at x, one number per sample [batch].

    Samples do not depend on each other, so the Jacobian of a batch is block-diagonal and one iteration serves all of
    them. The estimate grows towards |J|_2; a small `error` means that it has converged.

    Args:
        x, t: states [batch, ...] and their time.
        x0: the start of the trajectory, for a field with a leak.
        iterations: of the power method.
        seed: of the first direction; the global generator is left alone.
    """
    x = x.detach()
    dynamics = differentiable_dynamics(field, x if x0 is None else x0)

    def velocity(state: Tensor) -> Tensor:
        return dynamics(state, t)

    direction = units(random_normal(x.shape, seed).to(x))
    previous = value = x.new_zeros(len(x))
    push, pull = jacobian(velocity, x)
    for _ in range(iterations):
        pushed = push(direction)
        previous, value = value, norms(pushed)
        direction = units(pull(pushed))
    return Estimate(value, (value - previous).abs() / value.clamp_min(1e-12))


@torch.no_grad()
def attention_bound(attention: Attention, x: Tokens) -> Tensor:
    """|dG/dx|_2 <= |W_O| sqrt( sum_h b_h^2 ), one number per sample [batch], with

        b_h = |P| |W_V| + s |V - mean V| ( max_i g_1(P_i) |(K - mean K) W_Q| + |diag(g_1(P_i)) Q W_K| ).

    For a head O = P V, P = softmax(S), S = s Q K^T, and a change dX of the tokens, in Frobenius norms over them:

    - dO = P dV + dP V, and |P dV| <= |P| |W_V| |dX|.
    - Row i: dP_i = J_i dS_i with J_i = diag(P_i) - P_i P_i^T, symmetric, |J_i| <= g_1(P_i) <= 1/2 (Yudin et al. 2025).
    - J_i 1 = 0, so V may be centred: |dP V| <= |V - mean V| |diag(g_1) dS|, and so may K, whose mean shifts a whole row
      of scores.
    - dS = s (dQ K^T + Q dK^T) = s (dX (K W_Q)^T + Q W_K dX^T). Each row of the first part belongs to one token and is
      bounded with the largest g_1, each row of the second with its own.
    - Heads are concatenated, so their squares add up; W_O acts on the result.

    JaSMin reduces g_1, and with it every term but the first. Evaluated in double precision, so that rounding does not
    break the bound.

    Args:
        attention: dot-product attention, `field.attention`.
        x: its input, after the norm.
    """
    dot = dot_product(attention)
    if dot is None:
        name = type(attention).__name__
        raise ValueError(
            f"{name}; expected DotProductAttention: the bound holds for attention='dot' without qk_norm or rotary "
            "positions"
        )
    exact = copy.deepcopy(dot).double()
    projections = (exact.q_proj, exact.k_proj, exact.v_proj)
    Q, K, V = (exact.split(projection(x.double())) for projection in projections)
    W_Q, W_K, W_V = (projection.weight.unflatten(0, (exact.heads, exact.head_dim)) for projection in projections)
    scale = exact.head_dim**-0.5
    P = (scale * Q @ K.mT).softmax(dim=-1)
    # With a single token every row is constant.
    g_1 = g(P, 1) if x.shape[1] > 1 else torch.zeros_like(Q[..., 0])

    through_queries = g_1.amax(dim=-1) * spectral_norm(_centred(K) @ W_Q)
    through_keys = spectral_norm(g_1.unsqueeze(-1) * Q @ W_K)
    through_values = spectral_norm(P) * spectral_norm(W_V)
    heads = through_values + scale * spectral_norm(_centred(V)) * (through_queries + through_keys)
    return spectral_norm(exact.o_proj.weight) * heads.norm(dim=-1)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=-2, keepdim=True)
