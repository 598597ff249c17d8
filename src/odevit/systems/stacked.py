"""x_{l+1} = x_l + F_l(x_l + G_l(x_l)): the ordinary Vision Transformer, and the stack with depth-weighted averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import nn

from odevit.core.base import DEFAULT, DEPTHS, Field, Request
from odevit.core.solution import Solution
from odevit.core.solver_config import MOST_STEPS, SolverConfig
from odevit.errors import Expected, integer
from odevit.systems.residual import ResidualDepth
from odevit.tokens import Tokens


@DEPTHS.register("stacked")
class StackedDepth(ResidualDepth):
    """x_{l+1} = y + F_l(y), y = x_l + G_l(x_l): `steps` pre-norm blocks, each with weights of its own.

    The baseline of the paper's Table 2, and the ResNet of the survey's eq. 1: "a finite sequence of transformations,
    each with distinct parameters". A block is one Lie-Trotter step of length 1 of its own field, with the attention,
    norms and dropout of fields; solver and horizon are not used. With another `block` it is an ODE Transformer (Li et
    al. 2022: "fewer layers where each layer achieves higher-order precision") or a Macaron net (Lu et al. 2019); with a
    `scaling` the residuals have factors.

    Args:
        block, scaling, scaling_value: as for `ResidualDepth`.
        shared: how many layers in succession have the same weights.
    """

    rules: ClassVar[Mapping[str, Expected]] = {**ResidualDepth.rules, "shared": integer(1, MOST_STEPS)}
    subject = "a stacked depth"

    def __init__(
        self,
        make_field: Callable[[], Field],
        solver_config: SolverConfig,
        *,
        block: str = "lie_trotter",
        scaling: str = "none",
        scaling_value: float | None = None,
        shared: int = 1,
    ) -> None:
        super().__init__(make_field, solver_config)
        fields = [make_field() for _ in range(-(-solver_config.steps // shared))]
        self.layers = nn.ModuleList(self.setup_blocks(fields, block, scaling, scaling_value))
        self.shared = shared

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        recorder, x = self.recorder(x0, self.solver_config.steps, request), x0
        for number, layer in enumerate(self.blocks(), start=1):
            x = recorder.record(number, self.step(recorder, layer.dynamics(x), x, number))
        return recorder.solution(x)

    def blocks(self) -> list[Field]:
        """The field of every layer."""
        return [cast(Field, self.layers[number // self.shared]) for number in range(self.solver_config.steps)]

    def describe(self) -> str:
        kind = "untied layers" if self.shared == 1 else f"layers, tied {self.shared} by {self.shared}"
        return f"{self.solver_config.steps} {kind}{self.block_description}"


@DEPTHS.register("dense")
class DenseDepth(StackedDepth):
    """x_l = layer_l(y_{l-1}), y_l = sum_{j=0}^l w_lj x_j, with scalars w_lj, initially 1 for j = l and otherwise 0.

    DenseFormer's depth-weighted average (Pagliardini et al. 2024); initially it equals the plain stack. DLCL (Wang et
    al. 2019), the default in the code of the ODE Transformer, normalises the x_j and starts from their mean; DenseNet
    (Huang et al. 2017) concatenates them.

    In the survey it is the example of "non-Markovian dynamics" that "cannot be directly formulated as a standard Neural
    ODE": in an ODE, the state determines all later states; here, images with equal y_l and different x_j do not have
    the same later states. With layers of length 1/L its limit is an equation with memory,
    y(t) = x(t) + int_0^t w(t, s) x(s) ds, or an ODE of the whole history, whose dimension grows with the depth.

    The arguments are those of a stack.
    """

    subject = "a dense depth"

    def __init__(self, make_field: Callable[[], Field], solver_config: SolverConfig, **options: Any) -> None:
        super().__init__(make_field, solver_config, **options)
        self.shares = nn.ParameterList(
            # Cloned: views of one matrix share memory and cannot be saved in a checkpoint.
            torch.eye(solver_config.steps + 1)[layer, : layer + 1].clone()
            for layer in range(1, solver_config.steps + 1)
        )

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        recorder, y, states = self.recorder(x0, self.solver_config.steps, request), x0, [x0]
        for number, (layer, shares) in enumerate(zip(self.blocks(), self.shares, strict=True), start=1):
            states.append(self.step(recorder, layer.dynamics(y), y, number))
            average = sum(share * x for share, x in zip(shares, states, strict=True))
            y = recorder.record(number, cast(Tokens, average))
        return recorder.solution(y)

    def describe(self) -> str:
        return f"{super().describe()} that read all earlier states"
