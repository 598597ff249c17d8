"""n(x) (1 + s(t)) + b(t), or n(x + t e): time conditioning of a component's input."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.layers import TIME_INPUTS
from odevit.tokens import Tokens


def time_features(t: float, count: int, longest: float, device: torch.device) -> Tensor:
    """[sin(w t), cos(w t)], `count` frequencies w from 2 pi down to 2 pi / longest."""
    # Not a buffer, which would have to be saved and cast.
    exponents = torch.arange(count, device=device, dtype=torch.float32) / (count - 1)
    angles = (2.0 * math.pi * t) * longest**-exponents
    return torch.cat([angles.sin(), angles.cos()])


@TIME_INPUTS.register("modulate")
class TimeModulation(nn.Module):
    """y (1 + s(t)) + b(t), with (s, b) = W silu(W_1 [sin(w t), cos(w t)]) + c: a norm that depends on time (adaLN).

    W and c are initially 0: the field is initially autonomous.
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


@TIME_INPUTS.register("add")
class TimeAddition(nn.Module):
    """x + t e, with a learned direction e (Zhong et al. 2022), initially 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tokens, t: float) -> Tokens:
        # A product, because `alpha=t` is compiled again for every value of t.
        return x + t * self.direction
