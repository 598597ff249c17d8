"""y_l = sum_{j <= l} w_lj x_j, x_{l+1} = layer_{l+1}(y_l): every layer sees all earlier states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from odevit.core.base import DEFAULT, DEPTHS, Field, Request
from odevit.core.solution import Solution
from odevit.core.solver_config import SolverConfig
from odevit.systems.stacked import StackedDepth
from odevit.tokens import Tokens


@DEPTHS.register("dense")
class DenseDepth(StackedDepth):
    """x_l = layer_l(y_{l-1}), y_l = sum_{j=0}^l w_lj x_j, with scalars w_lj that start as 1 for j = l and else as 0.

    DenseFormer's depth-weighted average (Pagliardini et al. 2024). It begins as the plain stack. DLCL (Wang et al.
    2019), which is on by default in the code of the ODE Transformer, norms the x_j and begins with their mean; DenseNet
    (Huang et al. 2017) concatenates them.

    It is the counter-example of the survey ("non-Markovian dynamics ... cannot be directly formulated as a standard
    Neural ODE"): of an ODE, the state now decides all that follows, while two images with equal y_l and different pasts
    go on differently here. With layers of length 1/L its limit is an equation with memory,
    y(t) = x(t) + int_0^t w(t, s) x(s) ds, or an ODE of the whole history, whose dimension grows with the depth.

    The arguments are those of a stack.
    """

    def __init__(self, make_field: Callable[[], Field], solver_config: SolverConfig, **options: Any) -> None:
        super().__init__(make_field, solver_config, **options)
        self.shares = nn.ParameterList(
            # A view would share the memory of the whole matrix, which no checkpoint of a training can be written from.
            torch.eye(solver_config.steps + 1)[layer, : layer + 1].clone()
            for layer in range(1, solver_config.steps + 1)
        )

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        recorder, y, seen = self.recorder(x0, self.solver_config.steps, request), x0, [x0]
        for number, (layer, shares) in enumerate(zip(self.blocks(), self.shares, strict=True), start=1):
            seen.append(self.step(recorder, layer.dynamics(y), y, number))
            mean = sum(share * x for share, x in zip(shares, seen, strict=True))
            y = recorder.record(number, cast(Tokens, mean))
        return recorder.solution(y)

    @property
    def subject(self) -> str:
        return "a dense depth"

    def describe(self) -> str:
        return f"{super().describe()} that see all earlier states"
