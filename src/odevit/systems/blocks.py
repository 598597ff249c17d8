"""y' = y + sum_i b_i F_i, F_1 = F(y), F_2 = F(y + F_1), ...: how one layer is stepped."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.core.base import Dynamics, FixedStepSolver
from odevit.core.field import Branch, VectorField
from odevit.core.layers import Mlp
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.core.splitting import LieTrotter
from odevit.registry import Registry
from odevit.systems.scaling import multiplied
from odevit.tokens import Tokens

BLOCKS: Registry[type[Block]] = Registry("block")


class Block(nn.Module):
    """One step of a layer with attention G and MLP F: here x' = y + F(y), y = x + G(x), a pre-norm Transformer block.

    A subclass names another solver, or makes another equation of the layer's; what it learns, all layers share.
    """

    solver: ClassVar[str] = "lie_trotter"
    needs_own_field: ClassVar[bool] = False
    """Whether it changes the parts of a field, which then can be nobody else's."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def prepare(self, field: VectorField) -> VectorField:
        """A field with the parts that the block needs."""
        return field

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        """What is solved, and in which way, for a step of length h of the layer's equation."""
        return dynamics, SolverConfig(self.solver, 1, h)

    def scale_initial_weights(self) -> None:
        """Set the first values of what it learns."""


BLOCKS.register("lie_trotter")(Block)


@BLOCKS.register("euler")
class Euler(Block):
    """x' = x + G(x) + F(x): both at the same state, the parallel block of Zhong et al. (2022)."""

    solver = "euler"


@BLOCKS.register("strang")
class Strang(Block):
    """Half of F, all of G, half of F, with one F: a splitting of order 2, whose parts take midpoint steps.

    What Lu et al. (2019) derive their Macaron block from; that one is `macaron`, and of order 1.
    """

    solver = "strang"

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        turned = dict(reversed(list(dynamics.components.items())))
        return super().equation(replace(dynamics, components=turned), h)


@BLOCKS.register("macaron")
class Macaron(Block):
    """x += F_1(x) / 2, x += G(x), x += F_2(x) / 2: two MLPs of half the width each (Lu et al. 2019).

    As many parameters as a block with one MLP, but for a norm.
    """

    needs_own_field = True

    def prepare(self, field: VectorField) -> VectorField:
        mixing, within = field.components["attention"], field.components["mlp"]
        parts = {"mlp_before": _half(within, 0), "attention": mixing, "mlp": _half(within, 1)}
        field.components = nn.ModuleDict(parts)
        return field

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        return super().equation(multiplied(dynamics, {"mlp_before": 0.5, "attention": 1.0, "mlp": 0.5}), h)


class IncrementBlock(Block):
    """A Runge-Kutta step of F(y) = L(y) - y, where L is the pre-norm block: an ODE Transformer (Li et al. 2022).

    F is the increment and never the layer with its residual, which the published code takes: with that, y' would be
    2.5 y + ... already for RK2. In attention plus MLP the order stays 1, since L goes through one first and the other
    then; `strang` has order 2.
    """

    def equation(self, dynamics: Dynamics, h: float) -> tuple[Dynamics, SolverConfig]:
        layer = LieTrotter()

        def increment(x: Tensor, t: float, observer: object) -> Tensor:
            return layer.step(dynamics.with_attention_hook(observer), x, t, h) - x  # type: ignore[arg-type]

        return Dynamics({"layer": increment}, anchor=dynamics.anchor), SolverConfig(self.method(), 1, 1.0)

    def method(self) -> FixedStepSolver:
        """The Runge-Kutta method, whose step has length 1: h is in F."""
        return cast(FixedStepSolver, make_solver(self.solver))


@BLOCKS.register("rk2")
class RK2(IncrementBlock):
    """F_1 = F(y), F_2 = F(y + F_1), y' = y + (F_1 + F_2) / 2: eqs. 4 to 6 of the survey. Two evaluations."""

    solver = "heun"


@BLOCKS.register("rk4")
class RK4(IncrementBlock):
    """y' = y + (F_1 + 2 F_2 + 2 F_3 + F_4) / 6, the classical method. Four evaluations."""

    solver = "rk4"


class MixedStages(IncrementBlock):
    """y' = y + mix(F_1, F_2), F_1 = F(y), F_2 = F(y + F_1), with a mixture that is learned."""

    @abstractmethod
    def mix(self, first: Tokens, second: Tokens) -> Tokens:
        """What is added to y."""

    def method(self) -> FixedStepSolver:
        return _MixedStep(self)


@BLOCKS.register("rk2_learned")
class LearnedRK2(MixedStages):
    """y' = y + a_1 F_1 + a_2 F_2, two scalars for all layers, started at (1, 1) as published; RK2 is (1/2, 1/2)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.shares = nn.Parameter(torch.ones(2))

    def mix(self, first: Tokens, second: Tokens) -> Tokens:
        return self.shares[0] * first + self.shares[1] * second


@BLOCKS.register("rk2_gated")
class GatedRK2(MixedStages):
    """y' = y + g F_1 + (1 - g) F_2, g = sigmoid(W_g [F_1; F_2]) for every token; one gate for all layers.

    The block that Li et al. recommend. With W_g = 0 the gate is one half and the step is RK2's.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.gate = nn.Linear(2 * dim, 1)

    def mix(self, first: Tokens, second: Tokens) -> Tokens:
        share = torch.sigmoid(self.gate(torch.cat([first, second], dim=-1)))
        return share * first + (1.0 - share) * second

    def scale_initial_weights(self) -> None:
        hf_init.xavier_uniform_(self.gate.weight)


class _MixedStep(FixedStepSolver):
    """x' = x + h mix(k_1, k_2), k_2 = f(x + h k_1)."""

    order = 1

    def __init__(self, block: MixedStages) -> None:
        self.block = block

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        first = dynamics(x, t)
        second = dynamics(torch.add(x, first, alpha=h), t + h)
        return torch.add(x, self.block.mix(first, second), alpha=h)

    def evaluations(self, components: int) -> int:
        return 2


def _half(branch: nn.Module, which: int) -> Branch:
    """A branch like this one with an MLP of half the hidden width."""
    half = cast(Branch, copy.deepcopy(branch))
    body = cast(Mlp, half.body)
    dim, hidden = body.up_proj.in_features, body.up_proj.out_features
    width = max(1, (hidden + which) // 2)
    half.body = Mlp(dim, width / dim, body.up_proj.bias is not None, "gelu", body.gate_proj is not None)
    half.body.activation = body.activation
    return half
