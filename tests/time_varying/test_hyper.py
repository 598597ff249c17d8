"""Weights from a network of the time, and time as an added direction."""

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.core.solve import solve
from odevit.errors import ConfigError
from odevit.time_varying.flat_weights import named_weights
from odevit.time_varying.hyper import HyperField
from tests.tiny import tiny_images, tiny_model

T = 3.0


def hyper(rank=None, moved=True):
    torch.manual_seed(0)
    field = HyperField(VectorField(16, 2, 1.0, leak=0.5, bias=True), T, size=3, rank=rank).double()
    if moved:
        for parameter in field.changes.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    return field, torch.randn(2, 5, 16, dtype=torch.float64)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("solver", ["heun", "etd_ab3", "lie_trotter"])
def test_constant_code_equals_an_autonomous_field(rank, solver):
    field, x = hyper(rank)
    with torch.no_grad():
        field.code.second.zero_()  # z(t) = v, whatever the time
        field.code.second_bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    still = VectorField(16, 2, 1.0, leak=0.5, bias=True).double()
    still.load_state_dict(
        {name: weight.detach() for name, weight in named_weights(field.at(1.0)).items()}
        | {name: value.detach() for name, value in field.at(1.0).named_buffers()}
    )
    solver_config = {"solver": solver, "steps": 6, "t1": T}
    assert torch.equal(solve(field, x, **solver_config).state, solve(still, x, **solver_config).state)


def test_hyper_field_is_initially_autonomous_and_learns_time():
    field, x = hyper(moved=False)
    base = field.knots[0]
    assert torch.equal(solve(field, x, steps=5, t1=T).state, solve(base, x, steps=5, t1=T).state)
    torch.optim.SGD(field.parameters(), lr=10.0).step(
        lambda: (loss := solve(field, x, steps=5, t1=T).state.square().sum(), loss.backward())[0]
    )
    early, late = (field.at(t)(x, x0=x) for t in (0.0, T))
    assert not torch.allclose(early, late)
    assert torch.equal(late, field.at(5 * T)(x, x0=x)), "held after the horizon"
    solve(field, x, steps=5, t1=T).state.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in field.code.parameters())


def test_model_with_hyper_field_is_saved_and_loaded(tmp_path):
    model, images = tiny_model(weights_over_time="network", basis=2, rank=2, leak=1.0), tiny_images()
    with torch.no_grad():
        for parameter in model.field.changes.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(images).logits, model(images).logits)
    plain = sum(parameter.numel() for parameter in tiny_model(leak=1.0).parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) < 2.5 * plain


def test_network_refuses_knots_and_stacks():
    with pytest.raises(ConfigError, match=r"weights_over_time=network and knots=3"):
        tiny_model(weights_over_time="network", knots=3)
    with pytest.raises(ConfigError, match="has no integration time"):
        tiny_model(weights_over_time="network", depth="stacked")


def test_time_conditioned_add_shifts_the_input_of_the_norm():
    torch.manual_seed(0)
    timed, plain = (VectorField(8, 2, 1.0, time_conditioned=kind).double() for kind in ("add", False))
    plain.load_state_dict(timed.state_dict(), strict=False)
    x, e = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    assert torch.equal(timed(x, 2.0), plain(x, 2.0)), "initially autonomous"
    with torch.no_grad():
        for _, branch in timed.branches():
            branch.time_added.direction.copy_(e)
    torch.testing.assert_close(timed(x, 2.0), plain(x + 2.0 * e))
    assert timed.autonomous_from == float("inf")
