"""x_{l+1} = x_l + F_l(x_l + G_l(x_l)): the ordinary Vision Transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from torch import nn

from odevit.depth.meaning import DEPTHS
from odevit.depth.residual import ResidualDepth
from odevit.errors import Expected, whole
from odevit.field.dynamics import Field
from odevit.solver import MOST_STEPS, Solution, Way
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

    rules: ClassVar[Mapping[str, Expected]] = {**ResidualDepth.rules, "shared": whole(1, MOST_STEPS)}

    def __init__(
        self,
        make_field: Callable[[], Field],
        way: Way,
        *,
        block: str = "lie_trotter",
        scaling: str = "none",
        scaling_value: float | None = None,
        shared: int = 1,
    ) -> None:
        super().__init__(make_field, way)
        fields = [make_field() for _ in range(-(-way.steps // shared))]
        self.layers = nn.ModuleList(self.furnish(fields, block, scaling, scaling_value))
        self.shared = shared

    def forward(self, x0: Tokens, way: Way | None = None, **options: Any) -> Solution:
        walk, x = self.walk(x0, self.way.steps, way, **options), x0
        for number, layer in enumerate(self.blocks(), start=1):
            x = walk.reach(number, self.step(walk, layer.dynamics(x), x, number))
        return walk.solution(x)

    def blocks(self) -> list[Field]:
        """The field of every layer."""
        return [cast(Field, self.layers[number // self.shared]) for number in range(self.way.steps)]

    @property
    def subject(self) -> str:
        return "a stacked depth"

    def describe(self) -> str:
        kind = "untied layers" if self.shared == 1 else f"layers, tied {self.shared} by {self.shared}"
        return f"{self.way.steps} {kind}{self.manner}"
