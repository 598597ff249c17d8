"""Hopfield attention decreases its energy and retrieves stored patterns."""

import pytest
import torch

from odevit.attention.hopfield import HopfieldAttention, memory_energy
from odevit.core.solve import solve
from odevit.errors import ConfigError
from odevit.train.compose import compose_recipe
from tests.tiny import tiny_images, tiny_model

DIM, HEADS = 16, 4


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, 7, DIM, dtype=torch.float64)


@pytest.mark.parametrize("beta", [0.01, 0.5, 4.0, 100.0])
def test_hopfield_energy_does_not_increase_with_updates(x, beta):
    stored = torch.randn(2, 9, DIM, dtype=torch.float64)
    attention = HopfieldAttention(DIM, HEADS, beta=beta).double()
    q, k = attention.split(attention.q_proj(x)), attention.split(attention.k_proj(stored))
    energies = [memory_energy(q, k, beta)]
    for updates in range(1, 12):
        q = (beta * q @ k.mT).softmax(dim=-1) @ k
        energies.append(memory_energy(q, k, beta))
        attention.updates = updates
        torch.testing.assert_close(attention(x, stored=stored), attention.merge(q) @ attention.q_proj.weight)
    rise = torch.stack(energies).diff(dim=0)
    rounding = 100 * torch.finfo(torch.float64).eps * (1 + torch.stack(energies).abs().max())
    assert (rise <= rounding).all()
    assert (rise[0] < -rounding).all(), "the first update decreases it"


@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("beta", [None, 3.0])
def test_hopfield_output_is_the_negative_energy_gradient(x, flow, beta):
    """With respect to the queries for constant patterns, and to queries and patterns with a flow."""
    attention = HopfieldAttention(DIM, HEADS, flow=flow, beta=beta).double()
    state = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(attention.energy(state, state if flow else x).sum(), state)
    torch.testing.assert_close(attention(x), -gradient)


def test_hopfield_flow_decreases_the_energy_along_a_trajectory(x):
    attention = HopfieldAttention(DIM, HEADS, flow=True).double()

    def height(state):
        return attention.energy(state, state) + (state - x).square().sum(dim=(1, 2)) / 2

    with torch.no_grad():
        path = solve(lambda y, t: attention(y) - (y - x), x, solver="rk4", steps=200, t1=8.0, save="all").states
        heights = torch.stack([height(state) for state in path])
    assert (heights.diff(dim=0) <= 1e-9 * heights.abs().max()).all()
    assert (heights[-1] < heights[0]).all()


def test_hopfield_retrieves_a_stored_pattern_from_a_noisy_one():
    """One thousand patterns in 64 dimensions, many more than a classical network's 0.14 d: an update finds each."""
    torch.manual_seed(0)
    memory = HopfieldAttention(64, 1, beta=2.0).double()
    for projection in (memory.q_proj, memory.k_proj):
        torch.nn.init.eye_(projection.weight)
    patterns = torch.randn(1, 1000, 64, dtype=torch.float64)
    noisy = patterns + 0.5 * torch.randn_like(patterns)
    with torch.no_grad():
        found = memory(noisy, stored=patterns)
        memory.beta = 1e-3
        mean = memory(noisy, stored=patterns)
    torch.testing.assert_close(found, patterns, rtol=1e-3, atol=1e-3)
    # A small beta retrieves the average of all patterns.
    torch.testing.assert_close(mean, patterns.mean(dim=1, keepdim=True).expand_as(mean), rtol=0, atol=0.1)


def test_hopfield_with_more_updates_retrieves_more_accurately():
    torch.manual_seed(0)
    patterns = torch.randn(1, 20, 64, dtype=torch.float64)
    noisy = patterns + 1.2 * torch.randn_like(patterns)

    def error(updates):
        memory = HopfieldAttention(64, 1, beta=0.1, updates=updates).double()
        for projection in (memory.q_proj, memory.k_proj):
            torch.nn.init.eye_(projection.weight)
        with torch.no_grad():
            return (memory(noisy, stored=patterns) - patterns).norm(dim=-1).median()

    assert error(8) < 0.8 * error(1)


def test_hopfield_options_are_saved_read_from_recipes_and_checked(tmp_path):
    model = tiny_model(attention="hopfield", attention_options={"updates": 3, "beta": 0.7})
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    attention = again.depth.field.attention
    assert (attention.updates, attention.beta, attention.flow) == (3, 0.7, False)
    images = tiny_images()
    torch.testing.assert_close(again(images).logits, model(images).logits)
    assert len(again(images, output_attentions=True).attentions) == again.solver_config.steps, "one map per evaluation"
    recipe = compose_recipe(["model.attention=hopfield", "model.attention_options.flow=true"])
    assert recipe.problems() == []
    assert recipe.model_settings()["attention_options"] == {"flow": True}
    with pytest.raises(ConfigError) as caught:
        tiny_model(attention="hopfield", attention_options={"updates": 2, "flow": True, "beta": 0, "bta": 1})
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="this attention has no options"):
        tiny_model(attention_options={"updates": 2})
    [problem] = compose_recipe(["model.attention=hopfield", "model.attention_options.updates=0"]).problems()
    assert problem.startswith("model.attention_options.updates=0; expected a whole number")


def test_hopfield_with_hook_has_forward_mode_derivatives(x):
    """Lyapunov exponents and Lipschitz constants use forward mode, which the fused kernel does not have."""
    attention = HopfieldAttention(DIM, HEADS, updates=3).double()
    direction, h = torch.randn_like(x), 1e-6
    _, pushed = torch.func.jvp(lambda x: attention(x, None, lambda _: None), (x,), (direction,))
    difference = (attention(x + h * direction) - attention(x - h * direction)) / (2 * h)
    torch.testing.assert_close(pushed, difference.detach(), rtol=1e-6, atol=1e-6)
