"""n(x) (1 + s(t)) + b(t): how a field may know the time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from odevit.tokens import Tokens


class TimeModulation(nn.Module):
    """y (1 + s(t)) + b(t), with (s, b) = W silu(W_1 [sin(w t), cos(w t)]) + c.

    W and c start at zero: a time-conditioned field is born autonomous and learns how much of the time it needs.
    """

    def __init__(self, dim: int, features: int = 32, longest_period: float = 100.0) -> None:
        super().__init__()
        self.features = features
        self.longest_period = longest_period
        self.in_proj = nn.Linear(2 * features, 2 * features)
        self.weight = nn.Parameter(torch.zeros(2 * dim, 2 * features))
        self.bias = nn.Parameter(torch.zeros(2 * dim))

    def forward(self, y: Tokens, t: float) -> Tokens:
        # The frequencies are made here, not kept as a buffer: a buffer would be one more thing to save and to cast.
        exponents = torch.arange(self.features, device=y.device, dtype=torch.float32) / max(1, self.features - 1)
        angles = (2.0 * math.pi * t) * self.longest_period**-exponents
        embedding = torch.cat([angles.sin(), angles.cos()]).to(self.in_proj.weight.dtype)
        scale, shift = F.linear(F.silu(self.in_proj(embedding)), self.weight, self.bias).chunk(2)
        return y * (1.0 + scale) + shift
