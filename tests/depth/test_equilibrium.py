"""The rest point is where the trajectory ends, from the same weights."""

import pytest
import torch

from odevit import OdeViTForImageClassification
from odevit.depth import EquilibriumDepth, OdeDepth
from odevit.errors import ConfigError
from odevit.field import VectorField
from odevit.solver import Way
from tests.model.tiny import tiny_images, tiny_model

RESTING = {"norm": "layer", "leak": 1.0, "solver": "lie_trotter", "steps": 8, "horizon": 6.0}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return tiny_model(**RESTING)


@pytest.fixture
def images():
    torch.manual_seed(1)
    return tiny_images(6)


def test_it_is_where_the_trajectory_ends(model, images):
    with torch.no_grad():
        far = model(images, steps=400, horizon=300.0)  # the model's own step of 0.75
        rest = model(images, depth="equilibrium")
    torch.testing.assert_close(rest.logits, far.logits, rtol=1e-2, atol=1e-3)
    assert rest.trajectory.ok
    assert int(rest.trajectory.evaluations.max()) < 100


def test_the_velocity_is_zero_at_the_rest_point_of_the_equation(model, images):
    with torch.no_grad():
        rest = model(images, depth="equilibrium", solver="exponential_euler").trajectory.state
        x0 = model.odevit.embedding(images)
        speed = model.odevit.depth.field(rest, x0=x0).flatten(1).norm(dim=1) / rest.flatten(1).norm(dim=1)
    assert (speed < 1e-3).all()


def test_the_same_checkpoint_is_an_ode_and_an_equilibrium(model, images, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = OdeViTForImageClassification.from_pretrained(tmp_path, depth="equilibrium").eval()
    assert isinstance(loaded.odevit.depth, EquilibriumDepth)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images).logits, model(images, depth="equilibrium").logits)
        torch.testing.assert_close(loaded(images, depth="ode").logits, model(images).logits)


def test_another_depth_borrows_the_field_and_leaves_no_trace(model, images):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    model(images, depth="equilibrium")
    assert isinstance(model.odevit.depth, OdeDepth)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


def test_a_field_without_a_rest_point_is_reported(images):
    torch.manual_seed(0)
    drifting = tiny_model(**{**RESTING, "leak": 0.0})
    with torch.no_grad():
        solution = drifting(images, depth="equilibrium", steps=10).trajectory
    assert not solution.ok
    assert "No rest point was found for" in solution.status


def test_what_belongs_to_a_trajectory_is_refused(model, images):
    with pytest.raises(ConfigError, match="a rest point has none"):
        model(images, depth="equilibrium", horizon=3.0)
    with pytest.raises(ConfigError, match="belong to a trajectory"):
        model(images, depth="equilibrium", save="all")
    with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
        model.train()(images, depth="equilibrium")
    with pytest.raises(ConfigError, match="no map of one step"):
        model.eval()(images, depth="equilibrium", solver="dopri5")
    with pytest.raises(ValueError, match="share no field"):
        tiny_model(depth="stacked")(images, depth="equilibrium")


def test_a_depth_by_itself():
    torch.manual_seed(0)
    depth = EquilibriumDepth(lambda: VectorField(16, 2, 1.0, leak=1.0), Way("exponential_euler", 4, 4.0)).eval()
    x0 = torch.randn(2, 5, 16)
    solution = depth(x0)
    torch.testing.assert_close(depth.field(solution.state, x0=x0), torch.zeros_like(x0), rtol=0, atol=5e-3)
