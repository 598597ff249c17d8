"""x_{l+1} = a_l x_l + s_l f_l(x_l): how much a layer changes, and how much of what was there stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.core.base import Component, Dynamics
from odevit.core.layers import Projection

Number = Callable[[int, int], float]
"""A number for layer l = 1..L of L."""


@dataclass(frozen=True)
class Rule:
    """s_l, a_l and how weights begin, each of layer l of L.

    Args:
        step: s_l, or, where it is learned, the value that it starts from.
        shortcut: a_l.
        learned: `scalar`, one factor a layer, or `vector`, one for every channel of attention and of the MLP; None is a
            constant. A constant is the length of the layer's step, so that a leak is as long as the rest of it.
        gain: what the values, the output projection and the MLP are multiplied with when they begin.
        value: what `scaling_value` sets in place of the published number; None where there is nothing to set.
    """

    step: Number = lambda layer, layers: 1.0
    shortcut: Number = lambda layer, layers: 1.0
    learned: str | None = None
    gain: Callable[[int], float] = lambda layers: 1.0
    value: Callable[[Rule, float], Rule] | None = None


def started(rule: Rule, value: float) -> Rule:
    """A learned factor that starts from `value`."""
    return replace(rule, step=lambda layer, layers: value)


def decaying(least: float) -> Number:
    """a_l = 1 - (1 - least) l / L."""
    return lambda layer, layers: 1.0 - (1.0 - least) * layer / layers


SCALINGS = {
    # A pre-norm Transformer.
    "none": Rule(),
    # CompleteP (Dey et al. 2025), of which this is the part that the model has; its rates and AdamW's epsilon for other
    # depths are the optimiser's. An Euler step of length 1/L, and depth has a limit (Sander et al. 2022).
    "1/L": Rule(lambda layer, layers: 1.0 / layers),
    # As the survey writes it: steps that get shorter, whose sum grows like ln L.
    "1/t": Rule(lambda layer, layers: 1.0 / layer),
    # ReZero (Bachlechner et al. 2020): one scalar for both residuals of a layer. The paper has no norms; ours stay.
    "rezero": Rule(lambda layer, layers: 0.0, learned="scalar", value=started),
    # LayerScale (Touvron et al. 2021, CaiT), with its values for a depth of 18, of 24, and more. In a stack it is what
    # `residual_scale` is in every field; here the layers of a shared field have factors of their own, too.
    "layerscale": Rule(
        lambda layer, layers: 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6, learned="vector", value=started
    ),
    # LipsFormer's weighted shortcut (Qi et al. 2023). The paper norms after the sum (CenterNorm), ours before.
    "lipsformer": Rule(lambda layer, layers: 1.0 / layers, learned="vector", value=started),
    # Raptor's time scale (2025), as a table in place of a network of the time; the recursion encoding of a Relaxed
    # Recursive Transformer (Bae et al. 2024) has one such vector for both parts of a block.
    "recursion": Rule(learned="vector", value=started),
    # DeepNet (Wang et al. 2022), an encoder alone: x' = LN(a x + f(x)), a = (2L)^(1/4), gain (8L)^(-1/4). LN does not
    # see a common factor, so that a sum x + f(x)/a is the same; but ours norms before f and not after the sum.
    "deepnet": Rule(lambda layer, layers: (2 * layers) ** -0.25, gain=lambda layers: (8 * layers) ** -0.25),
    # Decayed identity shortcuts (Zhang et al. 2024), a_L = 0.6. Here f is a whole layer, attention and MLP.
    "decayed": Rule(shortcut=decaying(0.6), value=lambda rule, least: replace(rule, shortcut=decaying(least))),
}
"""What is known by name, with its paper."""


class Scaling(nn.Module):
    """x_{l+1} = a_l x_l + s_l f_l(x_l): constants, or factors that are learned.

    Args:
        name: see `SCALINGS`.
        value: the start value of what is learned, or the last a_l of `decayed`; None is the published one.
        layers: L.
        names: of the components of a layer.
        dim: width of the tokens.
    """

    def __init__(self, name: str, value: float | None, layers: int, names: Sequence[str], dim: int) -> None:
        super().__init__()
        rule = SCALINGS[name]
        self.rule = rule if value is None or rule.value is None else rule.value(rule, value)
        self.layers, self.names = layers, tuple(names)
        # Vectors one by one, and never a matrix: an optimiser decays matrices.
        kinds: dict[str | None, list[tuple[int, ...]]] = {"scalar": [()], "vector": [(dim,)] * len(self.names)}
        shapes = kinds.get(rule.learned, [])
        starts = [self.rule.step(layer, layers) for layer in range(1, layers + 1)]
        self.factors = nn.ParameterList(torch.full(shape, start) for start in starts for shape in shapes)

    @property
    def is_learned(self) -> bool:
        """Whether it has factors of its own for each of so many layers."""
        return self.rule.learned is not None

    def step(self, layer: int, layers: int) -> float:
        """How long the step of layer l of L is."""
        return 1.0 if self.is_learned else self.rule.step(layer, layers)

    def shortcut(self, layer: int, layers: int) -> float:
        """a_l."""
        return self.rule.shortcut(layer, layers)

    def scaled(self, dynamics: Dynamics, layer: int) -> Dynamics:
        """The equation of layer l with its learned factors."""
        if not self.is_learned:
            return dynamics
        count = len(self.factors) // self.layers
        own = [self.factors[(layer - 1) * count + n % count] for n in range(len(self.names))]
        return multiplied(dynamics, dict(zip(self.names, own, strict=True)))

    def scale_initial_weights(self, fields: nn.Module) -> None:
        """Set the first weights of the fields, which were set without it."""
        gain = self.rule.gain(self.layers)
        for name, module in fields.named_modules():
            if gain != 1.0 and isinstance(module, Projection) and name.rpartition(".")[2] not in ("q_proj", "k_proj"):
                hf_init.copy_(module.weight, gain * module.weight)


def multiplied(dynamics: Dynamics, factors: dict[str, Tensor | float]) -> Dynamics:
    """The same equation, its components multiplied."""

    def part(component: Component, factor: Tensor | float) -> Component:
        return lambda x, t, observer: factor * component(x, t, observer)

    components = {name: part(component, factors[name]) for name, component in dynamics.components.items()}
    return replace(dynamics, components=components)
