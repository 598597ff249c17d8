"""y' = y + sum_i b_i F_i, F_1 = F(y), F_2 = F(y + F_1), ...: the numerical method of one layer."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.core.base import AttentionHook, Component, Dynamics, FixedStepSolver
from odevit.core.field import Branch, VectorField
from odevit.core.layers import Mlp
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.core.splitting import LieTrotter
from odevit.registry import Registry
from odevit.tokens import Tokens

BLOCKS: Registry[type[Block]] = Registry("block")


class Block(nn.Module):
    """x' = y + F(y), y = x + G(x), G attention and F an MLP: a pre-norm Transformer block.

    A subclass uses another solver, or another equation made of the components of the layer. All layers share its
    parameters.
    """

    solver: ClassVar[str] = "lie_trotter"
    needs_own_field: ClassVar[bool] = False
    """Whether it changes the modules of the field, so that no other depth can use the field."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def prepare(self, field: VectorField) -> VectorField:
        """The field with the modules that the block needs."""
        return field

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        """The equation to solve for a step of length h of the layer, and the solver."""
        return dynamics, SolverConfig(self.solver, 1, h)

    def scale_initial_weights(self) -> None:
        """Initialise its parameters."""


BLOCKS.register("lie_trotter")(Block)


@BLOCKS.register("euler")
class EulerBlock(Block):
    """x' = x + G(x) + F(x): both at the same state, the parallel block of Zhong et al. (2022)."""

    solver = "euler"


@BLOCKS.register("strang")
class StrangBlock(Block):
    """Half a step of F, a step of G, half a step of F, each by the midpoint rule: a splitting of order 2.

    Lu et al. (2019) derive their Macaron block from it; that block is `macaron`, of order 1.
    """

    solver = "strang"

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        reversed_components = dict(reversed(list(dynamics.components.items())))
        return super().equation(replace(dynamics, components=reversed_components), h)


@BLOCKS.register("macaron")
class MacaronBlock(Block):
    """x += F_1(x) / 2, x += G(x), x += F_2(x) / 2: two MLPs of half the width each (Lu et al. 2019).

    It has one norm more than a block with one MLP, and otherwise as many parameters.
    """

    needs_own_field = True

    def prepare(self, field: VectorField) -> VectorField:
        attention, mlp = field.components["attention"], field.components["mlp"]
        halves = {"mlp_before": _half_mlp(mlp, 0), "attention": attention, "mlp": _half_mlp(mlp, 1)}
        field.components = nn.ModuleDict(halves)
        return field

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        return super().equation(scale_components(dynamics, {"mlp_before": 0.5, "attention": 1.0, "mlp": 0.5}), h)


class IncrementBlock(Block):
    """A Runge-Kutta step of F(y) = L(y) - y, where L is the pre-norm block: an ODE Transformer (Li et al. 2022).

    F is the increment. The published code takes L itself, with which RK2 would be y' = 2.5 y + ... As a method for
    attention plus MLP the order stays 1, because L is a splitting of order 1; `strang` has order 2.
    """

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        layer = LieTrotter()

        def increment(x: Tensor, t: float, hook: AttentionHook | None) -> Tensor:
            return layer.step(dynamics.with_attention_hook(hook), x, t, h) - x

        return Dynamics({"layer": increment}, anchor=dynamics.anchor), SolverConfig(self.method(), 1, 1.0)

    def method(self) -> FixedStepSolver:
        """The Runge-Kutta method; its step has length 1, because F contains h."""
        return cast(FixedStepSolver, make_solver(self.solver))


@BLOCKS.register("rk2")
class RK2Block(IncrementBlock):
    """F_1 = F(y), F_2 = F(y + F_1), y' = y + (F_1 + F_2) / 2: eqs. 4 to 6 of the survey. Two evaluations."""

    solver = "heun"


@BLOCKS.register("rk4")
class RK4Block(IncrementBlock):
    """y' = y + (F_1 + 2 F_2 + 2 F_3 + F_4) / 6, the classical method. Four evaluations."""

    solver = "rk4"


class MixedRK2Block(IncrementBlock):
    """y' = y + mix(F_1, F_2), F_1 = F(y), F_2 = F(y + F_1), with a learned mixture."""

    @abstractmethod
    def mix(self, first: Tokens, second: Tokens) -> Tokens:
        """The sum that is added to y."""

    def method(self) -> FixedStepSolver:
        return _MixedRK2(self)


@BLOCKS.register("rk2_learned")
class LearnedRK2Block(MixedRK2Block):
    """y' = y + a_1 F_1 + a_2 F_2, two scalars for all layers, initially (1, 1) as published; RK2 is (1/2, 1/2)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.shares = nn.Parameter(torch.ones(2))

    def mix(self, first: Tokens, second: Tokens) -> Tokens:
        return self.shares[0] * first + self.shares[1] * second


@BLOCKS.register("rk2_gated")
class GatedRK2Block(MixedRK2Block):
    """y' = y + g F_1 + (1 - g) F_2, g = sigmoid(W_g [F_1; F_2]) for every token; one gate for all layers.

    The block that Li et al. recommend. With W_g = 0 the gate is 1/2 and the step is that of RK2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.gate = nn.Linear(2 * dim, 1)

    def mix(self, first: Tokens, second: Tokens) -> Tokens:
        gate = torch.sigmoid(self.gate(torch.cat([first, second], dim=-1)))
        return gate * first + (1.0 - gate) * second

    def scale_initial_weights(self) -> None:
        hf_init.xavier_uniform_(self.gate.weight)


class _MixedRK2(FixedStepSolver):
    """x' = x + h mix(k_1, k_2), k_2 = f(x + h k_1)."""

    order = 1

    def __init__(self, block: MixedRK2Block) -> None:
        self.block = block

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        first = dynamics(x, t)
        second = dynamics(torch.add(x, first, alpha=h), t + h)
        return torch.add(x, self.block.mix(first, second), alpha=h)

    def evaluations(self, components: int) -> int:
        return 2


def scale_components(dynamics: Dynamics, factors: dict[str, Tensor | float]) -> Dynamics:
    """The same equation with each component multiplied by its factor."""

    def scaled(component: Component, factor: Tensor | float) -> Component:
        return lambda x, t, hook: factor * component(x, t, hook)

    components = {name: scaled(component, factors[name]) for name, component in dynamics.components.items()}
    return replace(dynamics, components=components)


def _half_mlp(branch: nn.Module, index: int) -> Branch:
    """A copy of the MLP branch with half the hidden width."""
    half = cast(Branch, copy.deepcopy(branch))
    body = cast(Mlp, half.body)
    dim, hidden = body.up_proj.in_features, body.up_proj.out_features
    width = max(1, (hidden + index) // 2)
    half.body = Mlp(dim, width / dim, body.up_proj.bias is not None, "gelu", body.gate_proj is not None)
    half.body.activation = body.activation
    return half
