"""Each block equals its polynomial on a linear field."""

import math

import pytest
import torch

from odevit.core.base import Dynamics
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.systems.blocks import BLOCKS
from odevit.systems.stacked import StackedDepth
from tests.tiny import tiny_model

DIM = 8
ONE = torch.eye(DIM, dtype=torch.float64)


def square(seed):
    return 0.3 * torch.randn(DIM, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


G, F = square(1), square(2)
LAYER = (ONE + G) @ (ONE + F)  # tokens are rows: attention first
STEP = LAYER - ONE


def midpoint(matrix, h):
    return ONE + h * matrix + h**2 / 2 * matrix @ matrix


EXPECTED = {
    "lie_trotter": LAYER,
    "euler": ONE + G + F,
    "strang": midpoint(F, 0.5) @ midpoint(G, 1.0) @ midpoint(F, 0.5),
    "macaron": (ONE + F / 2) @ (ONE + G) @ (ONE + F / 2),
    "rk2": ONE + STEP + STEP @ STEP / 2,
    "rk4": ONE + STEP + STEP @ STEP / 2 + STEP @ STEP @ STEP / 6 + STEP @ STEP @ STEP @ STEP / 24,
    "rk2_learned": ONE + 2 * STEP + STEP @ STEP,  # started at (1, 1), it takes two steps in one
    "rk2_gated": ONE + STEP + STEP @ STEP / 2,  # with a gate of one half
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_on_a_linear_field_equals_its_polynomial(name):
    block = BLOCKS[name](DIM).double()
    for weight in block.parameters():
        if name == "rk2_gated":
            torch.nn.init.zeros_(weight)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    matrices = {"attention": G, "mlp": F}
    if name == "macaron":
        matrices = {"mlp_before": F, **matrices}
    parts = {part: lambda y, t, _, matrix=matrix: y @ matrix for part, matrix in matrices.items()}
    equation, solver_config = block.equation(Dynamics(parts, anchor=x), 1.0)
    found = solve(equation, x, solver=solver_config.method, steps=solver_config.steps, t1=solver_config.horizon).state
    torch.testing.assert_close(found, x @ EXPECTED[name], rtol=1e-12, atol=1e-12)


def stack(layers=3, **options):
    torch.manual_seed(7)
    return StackedDepth(
        lambda: VectorField(DIM, 2, 2.0).double(), SolverConfig("euler", layers, 1.0), **options
    ).double()


def test_gated_and_learned_rk2_with_halves_equal_rk2():
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    plain, gated, learned = stack(block="rk2"), stack(block="rk2_gated"), stack(block="rk2_learned")
    torch.nn.init.zeros_(gated.block.gate.weight)
    torch.nn.init.zeros_(gated.block.gate.bias)
    torch.nn.init.constant_(learned.block.shares, 0.5)
    for other in (gated, learned):
        torch.testing.assert_close(other(x).state, plain(x).state, rtol=1e-12, atol=1e-12)
        assert other(x).stats.nfe == 6
    torch.nn.init.constant_(gated.block.gate.bias, 40.0)  # all of F_1, nothing of F_2
    torch.testing.assert_close(gated(x).state, stack()(x).state, rtol=1e-12, atol=1e-12)


def test_layers_share_one_gate_with_xavier_init():
    few, many = (
        sum(weight.numel() for weight in stack(layers, block="rk2_gated").block.parameters()) for layers in (1, 6)
    )
    assert few == many == 2 * DIM + 1
    gate = tiny_model(depth="stacked", depth_options={"block": "rk2_gated"}).depth.block.gate
    bound = math.sqrt(6 / (2 * 32 + 1))  # Xavier's
    assert 0.8 * bound < gate.weight.abs().max() <= bound
    assert gate.bias == 0.0


def test_macaron_has_two_half_mlps_and_one_more_norm():
    plain, macaron = stack(1), stack(1, block="macaron")
    first, _, last = macaron.layers[0].components.values()
    assert first.body.up_proj.out_features == last.body.up_proj.out_features == DIM
    assert not torch.equal(first.body.up_proj.weight, last.body.up_proj.weight)
    more = sum(weight.numel() for weight in macaron.parameters()) - sum(weight.numel() for weight in plain.parameters())
    assert more == 2 * DIM
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    before, attention, after = macaron.layers[0].dynamics(x).components.values()
    y = x + before(x, 0.0, None) / 2
    y = y + attention(y, 0.0, None)
    torch.testing.assert_close(macaron(x).state, y + after(y, 0.0, None) / 2, rtol=1e-12, atol=1e-12)


def test_stack_with_shared_2_uses_each_field_for_two_layers():
    grouped = stack(5, shared=2)
    assert len(grouped.layers) == 3
    assert [grouped.blocks().index(layer) for layer in grouped.blocks()] == [0, 0, 2, 2, 4]
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    y = x
    for layer in grouped.blocks():
        y = solve(layer, y, solver="lie_trotter", steps=1, t1=1.0).state
    torch.testing.assert_close(grouped(x).state, y, rtol=0, atol=0)
