"""model(x, stop=...): each image stops on its own."""

import pytest
import torch

from odevit import OdeViTModel
from odevit.errors import ConfigError
from tests.tiny import tiny_config, tiny_images, tiny_model

RESTING = {"norm": "layer", "leak": 1.0, "solver": "lie_trotter", "steps": 16, "horizon": 12.0}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return tiny_model(**RESTING)


@pytest.fixture
def images():
    torch.manual_seed(1)
    return tiny_images(8)


@pytest.mark.parametrize("stop", ["velocity:0.05", "kl:0.0001", "bound"])
def test_stop_returns_logits_of_the_state_where_each_image_stopped(model, images, stop):
    with torch.no_grad():
        output = model(images, stop=stop)
        path = model(images, save="all").trajectory
        steps = (output.trajectory.stop_times / 0.75).round().long()
        assert steps.min() >= 2
        assert steps.min() < 16
        stopped = torch.stack([path.states[n][i] for i, n in enumerate(steps.tolist())])
        torch.testing.assert_close(output.logits, model.readout(stopped), rtol=1e-4, atol=1e-5)
    assert torch.equal(output.trajectory.evaluations, steps)


def test_smaller_stop_tolerance_takes_more_evaluations(model, images):
    loose, tight = (model(images, stop=f"velocity:{v}").trajectory.evaluations for v in (0.1, 0.005))
    assert (tight >= loose).all()
    assert tight.sum() > loose.sum()


def test_stop_refuses_adaptive_solvers_save_training_stacks_and_missing_heads(model, images):
    with pytest.raises(ConfigError, match="needs fixed steps, and Dopri5 is adaptive"):
        model(images, stop="kl", solver="dopri5")
    with pytest.raises(ConfigError, match="save and penalties are not possible"):
        model(images, stop="kl", save="all")
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        model.train()(images, stop="kl")
    with pytest.raises(ConfigError, match="untied layers"):
        tiny_model(depth="stacked")(images, stop="kl")
    encoder = OdeViTModel(tiny_config(**RESTING)).eval()
    with pytest.raises(ValueError, match="no head"):
        encoder(images, stop="kl")
    assert encoder(images, stop="velocity").trajectory.evaluations is not None
