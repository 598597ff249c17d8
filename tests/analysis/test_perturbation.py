"""perturb_patch, local_growth and Plane on fields with known solutions."""

import math

import pytest
import torch

from odevit.analysis.attention import attention_over_time, rollout
from odevit.analysis.lyapunov import local_growth
from odevit.analysis.perturbation import perturb_patch
from odevit.analysis.plane import Plane
from odevit.core.solver_config import SolverConfig
from tests.tiny import tiny_images, tiny_model


def leaking(leak):
    """dx/dt = -leak (x - x0)."""
    model = tiny_model(leak=leak, solver="exponential_euler", steps=5, horizon=2.0)
    for parameter in model.field.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def test_perturb_patch_paths_of_a_contracting_field_meet():
    parting = perturb_patch(leaking(1.0), tiny_images(1), (1, 2), strength=0.5)
    expected = [float(parting.distance[0]) * math.exp(-t) for t in parting.times]
    assert parting.distance.tolist() == pytest.approx(expected, rel=1e-4)
    assert parting.rate == pytest.approx(-1.0, rel=1e-4)
    assert parting.meets


def test_perturb_patch_of_a_picture_has_its_own_rest_point():
    parting = perturb_patch(leaking(1.0), tiny_images(1), (1, 2), kind="picture")
    assert parting.distance[0] > 0
    assert parting.distance.tolist() == pytest.approx([float(parting.distance[0])] * 6, rel=1e-4)
    assert not parting.meets


def test_perturb_patch_changes_only_the_patch():
    model, pixels = leaking(1.0), tiny_images(1)
    parting = perturb_patch(model, pixels, (3, 1), strength=2.0)
    moved = (parting.others[0] - parting.states[0])[0].norm(dim=-1)
    token = model.layout().patches.start + 3 * 4 + 1
    assert moved.nonzero().flatten().tolist() == [token]
    assert moved[token] == pytest.approx(2 * float(parting.states[0][0, token].norm()), rel=1e-5)


@pytest.mark.parametrize("wrong", [{"patch": (4, 0)}, {"kind": "all"}, {"strength": 0.0}, {"strength": float("nan")}])
def test_perturb_patch_refuses_bad_arguments(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        perturb_patch(leaking(1.0), tiny_images(1), **{"patch": (0, 0), **wrong})


def test_local_growth_is_the_rate_of_a_linear_field():
    """rk4 multiplies by 1 + z + z^2/2 + z^3/6 + z^4/24, z = -a h."""
    z = -0.7 * 0.25
    growth = local_growth(lambda x, t: -0.7 * x, torch.randn(1, 3, 4), SolverConfig("rk4", 8, 2.0))
    rate = math.log(1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24) / 0.25
    assert growth.rates.flatten().tolist() == pytest.approx([rate] * 8, rel=1e-4)
    assert growth.times == pytest.approx([0.25 * n for n in range(9)])


def test_local_rates_average_to_the_exponent():
    model = tiny_model(leak=1.0, steps=6, horizon=3.0)
    growth = local_growth(model.field, model.embed(tiny_images(2)).detach(), model.solver_config)
    assert torch.allclose(growth.rates.mean(dim=0), growth.exponents.values[:, 0], atol=1e-6)


def test_plane_keeps_distances_of_states_in_it():
    flat = torch.randn(9, 2, dtype=torch.float64) @ torch.linalg.qr(torch.randn(12, 2, dtype=torch.float64))[0].T
    points = Plane.through(flat + 3.0).points(flat + 3.0).double()
    assert torch.allclose(torch.cdist(points, points), torch.cdist(flat, flat), atol=1e-5)
    assert sum(Plane.through(flat).explained) == pytest.approx(1.0)


def test_plane_never_makes_distances_longer():
    states = torch.randn(20, 30)
    points = Plane.through(states[:10], states[10:]).points(states)
    assert (torch.cdist(points, points) <= torch.cdist(states, states) + 1e-4).all()


def test_rolled_attention_ends_in_the_rollout_of_all_maps():
    model, pixels = tiny_model(steps=3), tiny_images(1)
    path = attention_over_time(model, pixels, rolled=True)
    maps = []
    for state, t in zip(path.states, path.times, strict=True):
        model.field.dynamics(path.states[0]).with_attention_hook(maps.append).forcing(state, t)
    h = model.solver_config.step
    rolled = rollout(maps, 1 / (1 + h))
    weights, _ = model.readout_weights(path.states[-1])
    row = torch.einsum("bi,bij->bj", weights, rolled)[:, model.layout().patches]
    assert torch.allclose(path.rolled[-1].flatten(1), row, atol=1e-5)
    assert attention_over_time(model, pixels).rolled is None
