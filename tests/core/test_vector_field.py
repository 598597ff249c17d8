"""The field is the sum of its components, with one dropout mask per trajectory."""

import pytest
import torch

from odevit.core.attention import ATTENTIONS
from odevit.core.field import VectorField
from odevit.core.layers import NORMS, spectral_
from odevit.core.solve import solve


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_field_is_the_sum_of_its_components(attention, norm):
    field = VectorField(16, 2, 2.0, attention=attention, norm=norm, leak=0.7).double()
    x0, x = torch.randn(2, 2, 5, 16, dtype=torch.float64)
    dynamics = field.dynamics(x0)
    parts = sum(dynamics.component(name, x, 0.0) for name in ("attention", "mlp"))
    torch.testing.assert_close(field(x, x0=x0), parts - 0.7 * (x - x0))
    assert list(dynamics.components) == ["attention", "mlp"]


def test_leak_is_zero_at_the_start():
    field = VectorField(16, 2, leak=5.0)
    x0 = torch.randn(2, 5, 16)
    torch.testing.assert_close(field(x0), field.dynamics(x0).forcing(x0, 0.0))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_leak_with_bounded_norm_bounds_the_trajectory(norm):
    field = VectorField(16, 2, 2.0, norm=norm, leak=1.0)
    for parameter in field.parameters():
        torch.nn.init.normal_(parameter)  # not contractive: only the leak bounds the state
    x0 = torch.randn(4, 5, 16)
    distances = [
        (solve(field, x0, solver="exponential_euler", steps=int(10 * t), t1=t).state - x0).norm(dim=-1).max().item()
        for t in (5.0, 40.0)
    ]
    # |F| <= |forcing| / leak for all time: the distance does not grow with the horizon.
    assert distances[1] < 2 * distances[0]


def test_dropout_has_one_mask_per_trajectory():
    field = VectorField(16, 2, 2.0, attention_dropout=0.3, dropout=0.5, drop_path=0.2).train()
    x0, x = torch.randn(8, 5, 16), torch.randn(8, 5, 16)
    trajectory = field.dynamics(x0)
    torch.testing.assert_close(trajectory(x, 0.0), trajectory(x, 0.5), rtol=0, atol=0)
    another = field.dynamics(x0)
    assert not torch.equal(trajectory(x, 0.0), another(x, 0.0))


def test_evaluation_draws_no_dropout_masks():
    field = VectorField(16, 2, 2.0, attention_dropout=0.3, dropout=0.5, drop_path=0.2).eval()
    x0 = torch.randn(8, 5, 16)
    assert torch.equal(field.dynamics(x0)(x0, 0.0), field.dynamics(x0)(x0, 0.0))


def test_drop_path_drops_one_component_and_keeps_the_mean():
    field = VectorField(16, 2, 2.0, drop_path=0.5).train()
    x0 = torch.randn(1, 5, 16).expand(4000, 5, 16)
    dynamics = field.dynamics(x0)
    velocity = dynamics.component("mlp", x0, 0.0)
    dropped = velocity.flatten(1).abs().sum(1) == 0
    assert 0.45 < dropped.float().mean() < 0.55
    field.eval()
    expected = field.dynamics(x0[:1]).component("mlp", x0[:1], 0.0)
    torch.testing.assert_close(velocity.mean(0, keepdim=True), expected, rtol=0.1, atol=0.02)


def test_output_dropout_drops_numbers_and_drop_path_drops_components():
    torch.manual_seed(0)
    field = VectorField(16, 2, 2.0, output_dropout=0.25).train()
    x0 = torch.randn(1, 5, 16).expand(4000, 5, 16)
    dynamics = field.dynamics(x0)
    whole = field.eval().dynamics(x0[:1])
    for name in ("attention", "mlp"):
        velocity, expected = (
            solver_config.component(name, x, 0.0) for solver_config, x in ((dynamics, x0), (whole, x0[:1]))
        )
        share = (velocity == 0).float()
        assert 0.24 < share.mean() < 0.26
        kept = velocity != 0
        torch.testing.assert_close(velocity[kept], (expected / 0.75).expand_as(velocity)[kept], rtol=1e-5, atol=1e-6)
        assert torch.equal(velocity, dynamics.component(name, x0, 0.7)), "one mask for the trajectory"
    paths = VectorField(16, 2, 2.0, output_dropout=0.25, drop_path=0.5).train().dynamics(x0).component("mlp", x0, 0.0)
    gone = (paths == 0).flatten(1).float().mean(1)
    assert 0.45 < (gone == 1).float().mean() < 0.55
    assert 0.24 < gone[gone < 1].mean() < 0.26


def test_time_conditioned_field_is_initially_autonomous_and_learns_time():
    field = VectorField(16, 2, 2.0, time_conditioned=True)
    x = torch.randn(2, 5, 16)
    assert torch.equal(field(x, 0.0), field(x, 3.0))
    for branch in field.components.values():
        torch.nn.init.normal_(branch.time.weight)
    assert not torch.allclose(field(x, 0.0), field(x, 3.0))
    assert torch.isfinite(field(x, 1e3)).all()


def test_residual_scale_multiplies_each_component():
    plain, scaled = VectorField(16, 2), VectorField(16, 2, residual_scale=0.25)
    scaled.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(scaled(x), 0.25 * plain(x))


@pytest.mark.parametrize("shape", [(32, 16), (16, 48), (24, 3, 4, 4)])
def test_spectral_init_gives_spectral_norm_one(shape):
    weight = spectral_(torch.empty(shape))
    assert torch.linalg.matrix_norm(weight.flatten(1), ord=2).item() == pytest.approx(1.0, abs=1e-5)
