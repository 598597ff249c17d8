"""What a component does to the tokens before it looks at them."""

from __future__ import annotations

import torch
from torch import nn

from odevit.registry import Registry
from odevit.tokens import Tokens

NORMS: Registry[type[nn.Module]] = Registry("norm")


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
