"""x_{l+1} = a_l x_l + s_l f_l(x_l): layers with residuals, with any block and any residual scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import nn
from transformers import initialization as hf_init

from odevit.core.base import Dynamics, Field
from odevit.core.field import VectorField
from odevit.core.layers import Projection
from odevit.errors import Expected, real
from odevit.systems.blocks import BLOCKS, scale_components
from odevit.systems.layered import LayeredDepth, LayerRecorder
from odevit.tokens import Tokens

PerLayer = Callable[[int, int], float]
"""A number for layer l = 1..L of L."""


@dataclass(frozen=True)
class ScalingRule:
    """s_l, a_l and the gain of the initial weights, for layer l of L.

    Args:
        step: s_l; the initial value if it is learned.
        shortcut: a_l.
        learned: `scalar`, one factor for each layer, or `vector`, one for each channel of attention and of the MLP;
            None is a constant. A constant is the length of the layer's step, and scales a leak as well.
        gain: the factor of the initial values, output projections and MLPs.
        with_value: the same rule with `scaling_value` in place of the published number; None if it has no number.
    """

    step: PerLayer = lambda layer, layers: 1.0
    shortcut: PerLayer = lambda layer, layers: 1.0
    learned: str | None = None
    gain: Callable[[int], float] = lambda layers: 1.0
    with_value: Callable[[ScalingRule, float], ScalingRule] | None = None


def initial_step(rule: ScalingRule, value: float) -> ScalingRule:
    """The rule with a learned factor that starts at `value`."""
    return replace(rule, step=lambda layer, layers: value)


def decaying(last: float) -> PerLayer:
    """a_l = 1 - (1 - last) l / L."""
    return lambda layer, layers: 1.0 - (1.0 - last) * layer / layers


SCALINGS = {
    # A pre-norm Transformer.
    "none": ScalingRule(),
    # CompleteP (Dey et al. 2025), its part in the model; learning rates and AdamW's epsilon are set in the optimiser.
    # An Euler step of length 1/L: the limit of infinite depth exists (Sander et al. 2022).
    "1/L": ScalingRule(lambda layer, layers: 1.0 / layers),
    # As in the survey: steps that get shorter, whose sum grows like ln L.
    "1/t": ScalingRule(lambda layer, layers: 1.0 / layer),
    # ReZero (Bachlechner et al. 2020): one scalar for both residuals of a layer. The paper has no norms; these remain.
    "rezero": ScalingRule(lambda layer, layers: 0.0, learned="scalar", with_value=initial_step),
    # LayerScale (Touvron et al. 2021, CaiT), with its values for depths up to 18, up to 24, and more. In a stack it
    # equals `residual_scale` of a field; here the layers of a shared field have separate factors as well.
    "layerscale": ScalingRule(
        lambda layer, layers: 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6,
        learned="vector",
        with_value=initial_step,
    ),
    # LipsFormer's weighted shortcut (Qi et al. 2023). In the paper the norm (CenterNorm) is after the sum, here before.
    "lipsformer": ScalingRule(lambda layer, layers: 1.0 / layers, learned="vector", with_value=initial_step),
    # Raptor's time scale (2025), as a table instead of a network of the time; the recursion encoding of a Relaxed
    # Recursive Transformer (Bae et al. 2024) has one such vector for both components of a block.
    "recursion": ScalingRule(learned="vector", with_value=initial_step),
    # DeepNet (Wang et al. 2022), encoder only: x' = LN(a x + f(x)), a = (2L)^(1/4), gain (8L)^(-1/4). LN removes a
    # common factor, so that x + f(x)/a is equivalent; but here the norm is before f and not after the sum.
    "deepnet": ScalingRule(lambda layer, layers: (2 * layers) ** -0.25, gain=lambda layers: (8 * layers) ** -0.25),
    # Decayed identity shortcuts (Zhang et al. 2024), a_L = 0.6. Here f is a whole layer, attention and MLP.
    "decayed": ScalingRule(
        shortcut=decaying(0.6), with_value=lambda rule, last: replace(rule, shortcut=decaying(last))
    ),
}
"""The scalings by name, with their papers."""


class Scaling(nn.Module):
    """x_{l+1} = a_l x_l + s_l f_l(x_l): constants, or learned factors.

    Args:
        name: see `SCALINGS`.
        value: the initial value of learned factors, or the last a_l of `decayed`; None is the published one.
        layers: L.
        names: the components of a layer.
        dim: width of the tokens.
    """

    def __init__(self, name: str, value: float | None, layers: int, names: Sequence[str], dim: int) -> None:
        super().__init__()
        rule = SCALINGS[name]
        self.rule = rule if value is None or rule.with_value is None else rule.with_value(rule, value)
        self.layers, self.names = layers, tuple(names)
        # Separate vectors instead of a matrix: optimisers apply weight decay to matrices.
        kinds: dict[str | None, list[tuple[int, ...]]] = {"scalar": [()], "vector": [(dim,)] * len(self.names)}
        shapes = kinds.get(rule.learned, [])
        starts = [self.rule.step(layer, layers) for layer in range(1, layers + 1)]
        self.factors = nn.ParameterList(torch.full(shape, start) for start in starts for shape in shapes)

    @property
    def is_learned(self) -> bool:
        """Whether it has learned factors, which fixes the number of layers."""
        return self.rule.learned is not None

    def step(self, layer: int, layers: int) -> float:
        """The length of the step of layer l of L."""
        return 1.0 if self.is_learned else self.rule.step(layer, layers)

    def shortcut(self, layer: int, layers: int) -> float:
        """a_l."""
        return self.rule.shortcut(layer, layers)

    def scaled(self, dynamics: Dynamics, layer: int) -> Dynamics:
        """The equation of layer l with its learned factors."""
        if not self.is_learned:
            return dynamics
        count = len(self.factors) // self.layers
        factors = [self.factors[(layer - 1) * count + n % count] for n in range(len(self.names))]
        return scale_components(dynamics, dict(zip(self.names, factors, strict=True)))

    def scale_initial_weights(self, fields: nn.Module) -> None:
        """Multiply the initial weights of the fields by the gain."""
        gain = self.rule.gain(self.layers)
        for name, module in fields.named_modules():
            if gain != 1.0 and isinstance(module, Projection) and name.rpartition(".")[2] not in ("q_proj", "k_proj"):
                hf_init.copy_(module.weight, gain * module.weight)


class ResidualDepth(LayeredDepth):
    """x_{l+1} = a_l x_l + s_l f_l(x_l), l = 1, ..., L.

    A subclass calls `setup_blocks` with its fields, and `step` for every layer. Its options are

        block: the numerical method of a layer, see `BLOCKS`.
        scaling: s_l and a_l, see `SCALINGS`.
        scaling_value: the initial value of learned factors, or the last a_l of `decayed`; None is the published one.
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
        if not problems and value is not None and SCALINGS[name].with_value is None:
            names = ", ".join(known for known, rule in SCALINGS.items() if rule.with_value is not None)
            problems.append(
                f"depth_options.scaling_value={value}, but scaling={name!r} has no number to set; leave it out, or "
                f"choose a scaling that has one: {names}"
            )
        return problems

    def setup_blocks(self, fields: Iterable[Field], block: str, scaling: str, value: float | None) -> list[Field]:
        """Create the block and the scaling; the fields with the modules that the block needs."""
        fields = list(fields)
        dim = fields[0].dim
        self.block = BLOCKS[block](dim)
        fields = [self.block.prepare(cast(VectorField, field)) for field in fields]
        names = cast(VectorField, fields[0].at(0.0)).components
        self.scaling = Scaling(scaling, value, self.solver_config.steps, tuple(names), dim)
        method = "" if block == "lie_trotter" else f", each a step of {block}"
        self.block_description = method + ("" if scaling == "none" else f", scaled by {scaling}")
        return fields

    def scale_initial_weights(self) -> None:
        self.block.scale_initial_weights()
        self.scaling.scale_initial_weights(self)

    def step(self, recorder: LayerRecorder, dynamics: Dynamics, x: Tokens, layer: int) -> Tokens:
        """a_l x + s_l f(x) for layer l."""
        scaled = self.scaling.scaled(dynamics, layer)
        equation, solver_config = self.block.equation(scaled, self.scaling.step(layer, recorder.layers))
        after = recorder.run_layer(equation, x, solver_config)
        shortcut = self.scaling.shortcut(layer, recorder.layers)
        return after if shortcut == 1.0 else torch.add(after, x, alpha=shortcut - 1.0)
