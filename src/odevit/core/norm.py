"""n(x) (1 + s(t)) + b(t): what a component does to the tokens before it looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.registry import Registry
from odevit.tokens import Tokens

NORMS: Registry[Callable[[int], nn.Module]] = Registry("norm")


@NORMS.register("center")
class CenterNorm(nn.Module):
    """w * D/(D-1) * (x - mean_D(x)) + b.

    LipsFormer (Qi et al. 2023). Linear in x with spectral norm D/(D-1), hence Lipschitz, but it does not bound its
    output: over long horizons the state can grow, so pair it with `leak=0` and short horizons.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.gain = dim / (dim - 1)

    def forward(self, x: Tokens) -> Tokens:
        return self.weight * (self.gain * (x - x.mean(dim=-1, keepdim=True))) + self.bias


@NORMS.register("layer")
class LayerNorm(nn.LayerNorm):
    """w * (x - mean) / sqrt(var + eps) + b. Its output is bounded, which the attractor needs."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)


@NORMS.register("rms")
class RMSNorm(nn.RMSNorm):
    """w * x / sqrt(mean(x^2) + eps). Bounded like LayerNorm, without the centring."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)


def time_features(t: float, count: int, longest: float, device: torch.device) -> Tensor:
    """[sin(w t), cos(w t)], `count` frequencies w from 2 pi down to 2 pi / longest."""
    # The frequencies are made here, not kept as a buffer: a buffer would be one more thing to save and to cast.
    exponents = torch.arange(count, device=device, dtype=torch.float32) / (count - 1)
    angles = (2.0 * math.pi * t) * longest**-exponents
    return torch.cat([angles.sin(), angles.cos()])


class TimeModulation(nn.Module):
    """y (1 + s(t)) + b(t), with (s, b) = W silu(W_1 [sin(w t), cos(w t)]) + c: how a field may know the time.

    W and c start at zero: a time-conditioned field is born autonomous and learns how much of the time it needs.
    """

    features = 32
    longest_period = 100.0

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(2 * self.features, 2 * self.features)
        self.weight = nn.Parameter(torch.zeros(2 * dim, 2 * self.features))
        self.bias = nn.Parameter(torch.zeros(2 * dim))

    def forward(self, y: Tokens, t: float) -> Tokens:
        times = time_features(t, self.features, self.longest_period, y.device).to(y.dtype)
        scale, shift = F.linear(F.silu(self.in_proj(times)), self.weight, self.bias).chunk(2)
        return y * (1.0 + scale) + shift


class TimeAddition(nn.Module):
    """x + t e: the time as a direction among the channels (Zhong et al. 2022). e starts at zero."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tokens, t: float) -> Tokens:
        # A product, not `alpha=t`: torch's compiler takes every such number for another program.
        return x + t * self.direction
