"""|x_n - x(t_n)| <= (e^L - 1) / (2 N L) C: bounds of the error of N Euler steps (eq. 8, 11)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from odevit.attention.variants import CosineAttention
from odevit.core.attention import Attention, DotProductAttention
from odevit.errors import ConfigError, integer, real
from odevit.objectives.vectors import at_least_single, norms, spectral_norm


@overload
def approximation_bound(curvature: float, lipschitz: float, steps: int, horizon: float = 1.0) -> float: ...
@overload
def approximation_bound(curvature: Tensor, lipschitz: float | Tensor, steps: int, horizon: float = 1.0) -> Tensor: ...
@overload
def approximation_bound(curvature: float, lipschitz: Tensor, steps: int, horizon: float = 1.0) -> Tensor: ...
def approximation_bound(
    curvature: float | Tensor, lipschitz: float | Tensor, steps: int, horizon: float = 1.0
) -> float | Tensor:
    """(e^{LT} - 1) / (2 N L T) C T^2, and C T^2 / (2 N) at L = 0 (eq. 8; Sander et al. 2022).

    A step of Euler's method multiplies the error by at most 1 + h L and adds at most h^2 C / 2, which sums to
    h C / 2 ((1 + h L)^N - 1) / L with h = 1/N. For a horizon T, y(s) = x(T s) obeys y' = T f(y), with the constant L T,
    and y'' = T^2 x''. The paper prints e^{L-1}, which is no bound for L > 0.46; its code has e^L - 1.

    Args:
        curvature: C, the largest |x''| along the solution; a number, or one per sample.
        lipschitz: L, a Lipschitz constant of the field around it, in the same norm. With an assumed L (the paper takes
            0.5) the result is not a bound.
        steps: N.
        horizon: T.

    Returns:
        A float for floats, otherwise a tensor; infinite where e^{LT} is.
    """
    problems = [
        f"{name}={value}; expected numbers >= 0"
        for name, value in (("curvature", curvature), ("lipschitz", lipschitz))
        if not (torch.as_tensor(value) >= 0).all()
    ]
    problems += integer(1).problem("steps", steps) + real(above=0).problem("horizon", horizon)
    if problems:
        raise ConfigError("approximation_bound", problems)

    L = lipschitz if isinstance(lipschitz, Tensor) else torch.tensor(lipschitz, dtype=torch.float64)
    exponent = at_least_single(L) * horizon
    # (e^z - 1) / z is 1 at z = 0; neither it nor its gradient may be NaN there.
    divisor = torch.where(exponent == 0, 1.0, exponent)
    growth = torch.where(exponent == 0, 1.0, torch.expm1(divisor) / divisor)
    return curvature * (growth if isinstance(lipschitz, Tensor) else growth.item()) * (horizon**2 / (2 * steps))


def curvature(states: Sequence[Tensor], times: Sequence[float]) -> Tensor:
    """max_n | 2 ( (x_{n+1} - x_n) / h_n - (x_n - x_{n-1}) / h_{n-1} ) / (h_n + h_{n-1}) |, one number per sample.

    The second difference quotient of a saved trajectory, exact for a parabola on any grid. The norm is the Euclidean
    one over all tokens and channels of a sample, as for the L of `approximation_bound`. The quotient is a mean of x''
    around t_n: it approaches the C of eq. (8) from below as the grid is refined, until the rounding of the states,
    divided by h^2, dominates. (The released code takes h = N in place of 1/N.)

    Args:
        states: three or more states [batch, ...], such as `solution.states` with save="all".
        times: their times, `solution.times`.
    """
    gaps = [b - a for a, b in itertools.pairwise(times)]
    problems = []
    if len(states) < 3 or len(states) != len(times):
        problems.append(
            f"{len(states)} states at {len(times)} times; expected as many of each, at least three: "
            'solve(..., save="all") keeps them'
        )
    if not (all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)):
        problems.append(f"times={tuple(times)}; expected all different and in order")
    if len({state.shape for state in states}) > 1 or any(state.ndim == 0 for state in states):
        problems.append(f"states of shapes {[list(s.shape) for s in states]}; expected all alike, [batch, ...]")
    if problems:
        raise ConfigError("curvature", problems)

    xs = [at_least_single(state) for state in states]
    slopes = [(b - a) / gap for (a, b), gap in zip(itertools.pairwise(xs), gaps, strict=True)]
    bends = [
        norms(2.0 / (before + after) * (right - left))
        for (left, right), (before, after) in zip(itertools.pairwise(slopes), itertools.pairwise(gaps), strict=True)
    ]
    return torch.stack(bends).amax(dim=0)


@torch.no_grad()
def weight_bound(attention: Attention, radius: float, steps: int, lipschitz: float = 0.5) -> Tensor:
    """(e^L - 1) / (2 L N) max_h R^2 |W_V^h| (R |W_K^hT W_Q^h| + sqrt(d)) / (N^2 sqrt(d)) (eq. 11).

    Computed as printed, with spectral norms of each head; d is the width of a head, weights are stored as [d, D]. The
    paper stops a distillation by it. It depends on the weights alone and is not a bound:

    - 1/N^2 counts the step size twice. The error of Euler's method falls as 1/N, this falls as 1/N^3.
    - L = 0.5 bounds the Jacobian of softmax, not the Lipschitz constant of the field.
    - W_O, the norms and the MLP are left out, and tokens may leave the radius R.

    The released code takes Frobenius norms of all heads together, larger by up to the root of the rank.

    Args:
        attention: dot-product attention, `field.attention`.
        radius: R, the largest norm of a token; the paper takes 10.
        steps: N.
        lipschitz: L; the paper takes 0.5.
    """
    problems = [] if lipschitz >= 0 else [f"lipschitz={lipschitz}; expected a number >= 0"]
    problems += real(above=0).problem("radius", radius) + integer(1).problem("steps", steps)
    dot = dot_product(attention)
    if dot is None:
        problems.append(
            f"{type(attention).__name__}; expected DotProductAttention: eq. (11) holds for attention='dot' without "
            "qk_norm or rotary positions"
        )
    if dot is None or problems:
        raise ConfigError("weight_bound", problems)

    q, k, v = (
        at_least_single(projection.weight).unflatten(0, (dot.heads, dot.head_dim))
        for projection in (dot.q_proj, dot.k_proj, dot.v_proj)
    )
    # |W_K^T W_Q| = |R_K R_Q^T| with W^T = (orthonormal) R: matrices of d x d in place of D x D.
    scores = spectral_norm(torch.linalg.qr(k.mT).R @ torch.linalg.qr(q.mT).R.mT)
    root = math.sqrt(dot.head_dim)
    bend = radius**2 * spectral_norm(v) * (radius * scores + root) / (steps**2 * root)
    return approximation_bound(bend.amax(), lipschitz, steps)


def dot_product(attention: object) -> DotProductAttention | None:
    """The attention if its scores are plain dot products, None otherwise.

    The scores of cosine attention, and of normed queries and keys, do not grow with the matrices; rotary positions
    stand between the two.
    """
    if isinstance(attention, DotProductAttention) and not isinstance(attention, CosineAttention):
        return attention if attention.q_norm is None and attention.rotary is None else None
    return None
