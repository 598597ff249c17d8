"""W(t) = W_0 + sum_r z_r(t) B_r, z = V silu(U phi(t) + u) + v: weights that a small network computes from the time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.field import VectorField
from odevit.time_varying.conditioning import time_features
from odevit.time_varying.flat_weights import named_weights
from odevit.time_varying.knot_schedule import Between, KnotSchedule
from odevit.time_varying.knots import KnottedField
from odevit.time_varying.low_rank import LowRankChange


class TimeCode(nn.Module):
    """z(t) = V silu(U phi(t) + u) + v, phi the sines and cosines of t at several frequencies.

    Args:
        size: R, how many numbers stand for a time.
        hidden: width between U and V.
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
        """z where `share` of the horizon has passed."""
        # The shortest period is 1/64 of the longest, which is twice the horizon: no two times look alike.
        times = time_features(share / 2, self.features, self.longest_period, self.first.device).to(self.first.dtype)
        return F.linear(F.silu(F.linear(times, self.first, self.first_bias)), self.second, self.second_bias)


class HyperField(KnottedField):
    """dx/dt = G(x; W(t)) + F(x; W(t)) - leak (x - x0),  W(t) = W_0 + sum_r z_r(t) B_r.

    Neural ODE Transformer (Tong et al. 2025), which the survey does not have. There every matrix has its own code and
    21 to 97 times its parameters. Here one code z(t) serves all weights, R is small, and the B_r may be of low rank;
    they begin as nothing, so that the field is born autonomous. From the horizon on the weights stand still. It is a
    field with knots otherwise: its changes are weighed by z instead of by how near they are.

    Args:
        base: W_0.
        horizon: T.
        size: R.
        rank: of every B_r; None makes them full.
    """

    def __init__(self, base: VectorField, horizon: float, *, size: int, rank: int | None = None) -> None:
        still, moving = KnotSchedule.of(1, horizon, "linear"), KnotSchedule.of(2, horizon, "linear")
        super().__init__([base], still, [LowRankChange(base, rank) for _ in range(size)], moving)
        self.code = TimeCode(size)

    def describe(self) -> str:
        horizon = self.change_schedule.horizon
        return (
            f"{self._knot(0).describe('x; W(t)')}, W(t) a sum of {1 + len(self.changes)} weights by a network of t, "
            f"held from t = {horizon:g} on"
        )

    def _flat_knots(self) -> None:
        # Its weights are sums and not blends of two knots.
        return None

    def _weights(self, knot: Between, change: Between) -> dict[str, Tensor]:
        weights = named_weights(self._knot(0))
        code = self.code(change[0] + change[1])  # the share of T that has passed: its two knots are 0 and T
        for part, basis in zip(code.unbind(), self.changes, strict=True):
            for name, added in basis.weights(weights).items():  # type: ignore[operator]
                weights[name] = weights[name] + part * added.view_as(weights[name])
        return weights
