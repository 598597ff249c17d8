"""The ODE with Euler is a tied residual network; the stack is a pre-norm ViT."""

import math

import pytest
import torch
import torch.nn.functional as F

from odevit.core.base import Request
from odevit.core.field import VectorField
from odevit.core.ode_depth import OdeDepth
from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError
from odevit.solvers.adaptive import Dopri5
from odevit.systems.stacked import StackedDepth
from tests.tiny import tiny_images, tiny_model

DIM, HEADS = 16, 2


def field(norm="center", leak=0.0):
    return VectorField(DIM, HEADS, 2.0, norm=norm, leak=leak).double()


def layer_by_hand(weights, prefix, x):
    """The two branches of a pre-norm block with CenterNorm, from the state dict alone."""

    def normed(name):
        w, b = weights[f"{prefix}components.{name}.norm.weight"], weights[f"{prefix}components.{name}.norm.bias"]
        return w * DIM / (DIM - 1) * (x - x.mean(-1, keepdim=True)) + b

    def weight(name):
        return weights[f"{prefix}components.{name}.weight"].T

    y = normed("attention")
    q, k, v = (y @ weight(f"attention.body.{p}_proj") for p in "qkv")
    heads = []
    for h in range(HEADS):
        part = slice(h * DIM // HEADS, (h + 1) * DIM // HEADS)
        scores = q[..., part] @ k[..., part].mT / math.sqrt(DIM / HEADS)
        heads.append(scores.softmax(-1) @ v[..., part])
    attention = torch.cat(heads, -1) @ weight("attention.body.o_proj")
    mlp = F.gelu(normed("mlp") @ weight("mlp.body.up_proj")) @ weight("mlp.body.down_proj")
    return attention, mlp


@pytest.mark.parametrize("layers", [1, 5, 12])
def test_euler_ode_equals_a_tied_residual_network(layers):
    f, x = field(), torch.randn(2, 7, DIM, dtype=torch.float64)
    found = solve(f, x, solver="euler", steps=layers).state
    for _ in range(layers):
        attention, mlp = layer_by_hand(f.state_dict(), "", x)
        x = x + (attention + mlp) / layers
    torch.testing.assert_close(found, x, rtol=1e-12, atol=1e-12)


def test_stacked_depth_equals_pre_norm_transformer_blocks():
    depth = StackedDepth(field, SolverConfig("lie_trotter", 3, 1.0))
    x0 = x = torch.randn(2, 7, DIM, dtype=torch.float64)
    for layer in range(3):
        x = x + layer_by_hand(depth.state_dict(), f"layers.{layer}.", x)[0]
        x = x + layer_by_hand(depth.state_dict(), f"layers.{layer}.", x)[1]
    solution = depth(x0, Request(save=SaveAt("all", attentions=True)))
    torch.testing.assert_close(solution.state, x, rtol=1e-12, atol=1e-12)
    assert len(solution.states) == 4
    assert len(solution.attentions) == solution.stats.nfe == 3


def test_stack_with_tied_weights_equals_lie_trotter_with_unit_steps():
    f = field("layer")
    stack = StackedDepth(lambda: f, SolverConfig("lie_trotter", 4, 4.0))
    ode = OdeDepth(lambda: f, SolverConfig("lie_trotter", 4, 4.0))
    x0 = torch.randn(2, 7, DIM, dtype=torch.float64)
    torch.testing.assert_close(stack(x0).state, ode(x0).state, rtol=0, atol=0)


def test_request_changes_the_solver_of_one_call_only():
    depth = OdeDepth(lambda: field("layer", leak=1.0), SolverConfig("lie_trotter", 8, 4.0))
    x0 = torch.randn(2, 7, DIM, dtype=torch.float64)
    fine = depth(x0, Request(depth.solver_config.replace("rk4", steps=400))).state
    assert depth(x0, Request(depth.solver_config.replace("dopri5"))).stats.nfe > 0
    torch.testing.assert_close(
        depth(x0, Request(depth.solver_config.replace("dopri5"))).state, fine, rtol=1e-3, atol=1e-3
    )
    assert depth(x0, Request(depth.solver_config.replace(horizon=2.0))).time == 2.0
    assert depth(x0).stats.steps == 8


def test_resolve_with_the_own_solver_name_keeps_its_tolerance():
    own = SolverConfig(Dopri5(rtol=1e-7, atol=1e-8), 4, 2.0)
    assert own.replace("dopri5", horizon=3.0) == SolverConfig(own.solver, 4, 3.0)
    assert own.replace(Dopri5()).method.rtol == Dopri5().rtol
    assert own.replace("tsit5").solver == "tsit5"
    model, images = tiny_model(solver="dopri5", tolerance=1e-6), tiny_images()
    named = model(images, solver="dopri5")
    assert named.stats == model(images).stats
    assert named.stats.nfe > tiny_model(solver="dopri5")(images, solver="dopri5").stats.nfe


@pytest.mark.parametrize("horizon", [0, -1.0, float("nan")])
def test_horizon_must_be_positive_and_finite(horizon):
    depth = OdeDepth(field, SolverConfig("euler", 2, 1.0))
    with pytest.raises(ValueError, match=r"horizon=.*expected a finite time > 0"):
        depth(torch.randn(1, 3, DIM, dtype=torch.float64), depth.resolve(None, None, horizon))


def test_stacked_depth_refuses_solver_options():
    depth = StackedDepth(field, SolverConfig("euler", 2, 1.0))
    with pytest.raises(ConfigError, match=r"2 problems(.|\n)*solver='rk4'(.|\n)*steps=3"):
        depth(torch.randn(1, 3, DIM, dtype=torch.float64), depth.resolve("rk4", 3, None))
