"""W(t) = W_0 + sum_r z_r(t) B_r, z = V silu(U phi(t) + u) + v: weights from a small network of the time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.field import VectorField
from odevit.time_varying.conditioning import time_features
from odevit.time_varying.flat_weights import named_weights
from odevit.time_varying.knot_schedule import KnotSchedule, Position
from odevit.time_varying.knots import KnottedField
from odevit.time_varying.low_rank import LowRankChange


class TimeCode(nn.Module):
    """z(t) = V silu(U phi(t) + u) + v, phi the sines and cosines of t at several frequencies.

    Args:
        size: R, the number of outputs.
        hidden: width of the hidden layer.
    """

    features = 16
    longest_period = 64.0

    def __init__(self, size: int, hidden: int = 32) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(hidden, 2 * self.features) / math.sqrt(self.features))
        self.first_bias = nn.Parameter(torch.zeros(hidden))
        self.second = nn.Parameter(torch.randn(size, hidden) / math.sqrt(hidden / 4))
        self.second_bias = nn.Parameter(torch.zeros(size))

    def forward(self, share: float) -> Tensor:
        """z(t) at t = share T."""
        # The longest period is twice the horizon, so that different times have different features.
        times = time_features(share / 2, self.features, self.longest_period, self.first.device).to(self.first.dtype)
        return F.linear(F.silu(F.linear(times, self.first, self.first_bias)), self.second, self.second_bias)


class HyperField(KnottedField):
    """dx/dt = G(x; W(t)) + F(x; W(t)) - leak (x - x0),  W(t) = W_0 + sum_r z_r(t) B_r.

    Neural ODE Transformer (Tong et al. 2025), which is not in the survey. There, every matrix has its own network and
    21 to 97 times its parameters. Here, all weights share one code z(t), R is small, and the B_r can have low rank;
    they are initially 0, so that the field is initially autonomous. From the horizon on the weights are constant. The
    class is a field with knots whose changes are weighted by z instead of interpolated.

    Args:
        base: W_0.
        horizon: T.
        size: R.
        rank: of every B_r; None makes them full.
    """

    def __init__(self, base: VectorField, horizon: float, *, size: int, rank: int | None = None) -> None:
        single, ends = KnotSchedule.of(1, horizon, "linear"), KnotSchedule.of(2, horizon, "linear")
        super().__init__([base], single, [LowRankChange(base, rank) for _ in range(size)], ends)
        self.code = TimeCode(size)

    def describe(self) -> str:
        horizon = self.change_schedule.horizon
        return (
            f"{self._knot(0).describe('x; W(t)')}, W(t) a sum of {1 + len(self.changes)} weights by a network of t, "
            f"constant from t = {horizon:g} on"
        )

    def _flat_knots(self) -> None:
        # Its weights are sums, not interpolated.
        return None

    def _weights(self, knot: Position, change: Position) -> dict[str, Tensor]:
        weights = named_weights(self._knot(0))
        code = self.code(change[0] + change[1])  # its two knots are 0 and T: k + w = t / T
        for factor, basis in zip(code.unbind(), self.changes, strict=True):
            for name, change_of_weight in basis.weights(weights).items():  # type: ignore[operator]
                weights[name] = weights[name] + factor * change_of_weight.view_as(weights[name])
        return weights
