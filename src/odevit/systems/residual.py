"""x_{l+1} = a_l x_l + s_l f_l(x_l): layers with residuals, however they are stepped and scaled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import torch

from odevit.core.base import Dynamics, Field
from odevit.core.field import VectorField
from odevit.errors import Expected, real
from odevit.systems.blocks import BLOCKS
from odevit.systems.layered import LayeredDepth, LayerRecorder
from odevit.systems.scaling import SCALINGS, Scaling
from odevit.tokens import Tokens


class ResidualDepth(LayeredDepth):
    """x_{l+1} = a_l x_l + s_l f_l(x_l), l = 1, ..., L.

    A subclass furnishes its fields and takes a `step` of one of them for every layer. Its options are

        block: how a layer is stepped, see `BLOCKS`.
        scaling: s_l and a_l, see `SCALINGS`.
        scaling_value: the start value of what is learned, or the last a_l of `decayed`; None is the published one.
    """

    rules: ClassVar[Mapping[str, Expected]] = {
        "block": Expected(f"one of {', '.join(BLOCKS)}", lambda v: isinstance(v, str) and v in BLOCKS),
        "scaling": Expected(f"one of {', '.join(SCALINGS)}", lambda v: isinstance(v, str) and v in SCALINGS),
        "scaling_value": real(minimum=-1e6, maximum=1e6, optional=True),
    }

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        problems, value = super().option_problems(options), options.get("scaling_value")
        name = options.get("scaling", "none")
        if not problems and value is not None and SCALINGS[name].value is None:
            able = ", ".join(known for known, rule in SCALINGS.items() if rule.value is not None)
            problems.append(
                f"depth_options.scaling_value={value}, but scaling={name!r} has no number to set; leave it out, or "
                f"choose a scaling that has one: {able}"
            )
        return problems

    def setup_blocks(self, fields: Iterable[Field], block: str, scaling: str, value: float | None) -> list[Field]:
        """Take on a way to step the fields and to scale them; the fields as that way needs them."""
        fields = list(fields)
        dim = fields[0].dim
        self.block = BLOCKS[block](dim)
        fields = [self.block.prepare(cast(VectorField, field)) for field in fields]
        names = cast(VectorField, fields[0].at(0.0)).components
        self.scaling = Scaling(scaling, value, self.solver_config.steps, tuple(names), dim)
        stepped = "" if block == "lie_trotter" else f", each a step of {block}"
        self.manner = stepped + ("" if scaling == "none" else f", scaled by {scaling}")
        return fields

    def scale_initial_weights(self) -> None:
        self.block.scale_initial_weights()
        self.scaling.scale_initial_weights(self)

    def step(self, recorder: LayerRecorder, dynamics: Dynamics, x: Tokens, layer: int) -> Tokens:
        """a_l x + s_l f(x) for layer l, f of one step of the block."""
        scaled = self.scaling.scaled(dynamics, layer)
        equation, solver_config = self.block.equation(scaled, self.scaling.step(layer, recorder.layers))
        after = recorder.run_layer(equation, x, solver_config)
        shortcut = self.scaling.shortcut(layer, recorder.layers)
        return after if shortcut == 1.0 else torch.add(after, x, alpha=shortcut - 1.0)
