"""x_{l+1} = x_l + F_l(x_l + G_l(x_l)): the ordinary Vision Transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, cast

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
    each with distinct parameters". A block is one Lie-Trotter step of length 1 of its own field, so everything that
    holds of fields (attention, norms, dropout) holds here; solver and horizon have no meaning. With another `block` it
    is an ODE Transformer (Li et al. 2022: "fewer layers where each layer achieves higher-order precision") or a
    Macaron net (Lu et al. 2019); with a `scaling` the residuals have a length.

    Args:
        block, scaling, scaling_value: as for `ResidualDepth`.
        shared: how many layers in succession have the same weights.
    """

    rules: ClassVar[Mapping[str, Expected]] = {**ResidualDepth.rules, "shared": integer(1, MOST_STEPS)}

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

    @property
    def subject(self) -> str:
        return "a stacked depth"

    def describe(self) -> str:
        kind = "untied layers" if self.shared == 1 else f"layers, tied {self.shared} by {self.shared}"
        return f"{self.solver_config.steps} {kind}{self.manner}"
