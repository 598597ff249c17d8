"""LayerRecorder, and the options of a depth."""

import pytest
import torch
from torch import nn

from odevit import OdeViTForImageClassification
from odevit.core.base import DEFAULT, DEPTHS
from odevit.core.solution import SaveAt
from odevit.errors import ConfigError, integer
from odevit.systems.layered import LayerRecorder
from odevit.systems.stacked import StackedDepth
from odevit.train.compose import compose_recipe
from tests.tiny import tiny_images, tiny_model


class EchoDepth(StackedDepth):
    """A stack that repeats its last layer `echoes` times."""

    rules = {"echoes": integer(1, 4)}  # noqa: RUF012

    def __init__(self, make_field, solver_config, *, echoes=1):
        super().__init__(make_field, solver_config)
        self.echoes = echoes
        self.price = nn.Parameter(torch.zeros(()))

    def scale_initial_weights(self):
        nn.init.constant_(self.price, 3.0)

    def forward(self, x0, request=DEFAULT):
        recorder, x = self.recorder(x0, self.echoes, request), x0
        for number in range(1, self.echoes + 1):
            x = recorder.record(number, recorder.run_layer(self.layers[-1], x))
        return recorder.solution(x, costs={"price": 2.0 * self.price})


@pytest.fixture
def echo():
    with DEPTHS.restored():
        DEPTHS.register("echo")(EchoDepth)
        yield


@pytest.mark.usefixtures("echo")
def test_depth_options_are_read_from_recipes_and_saved(tmp_path):
    recipe = compose_recipe(["depth=echo", "depth.echoes=3"])
    recipe.check()
    assert recipe.model_settings()["depth_options"] == {"echoes": 3}
    model = tiny_model(depth="echo", depth_options={"echoes": 3})
    assert model(tiny_images()).stats.nfe == 3
    assert model.depth.price.item() == 3.0, "scale_initial_weights() sets the first values"
    with torch.no_grad():
        model.depth.price.fill_(5.0)
    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path)
    assert (again.depth.echoes, again.depth.price.item()) == (3, 5.0)


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["depth=echo", "depth.echoes=7"], "depth.echoes=7; expected a whole number, at least 1 and at most 4"),
        (["depth=ode", "depth.echoes=1"], "depth.echoes=1, but this depth has no options; leave it out"),
        (["depth=echo", "depth.echos=1"], "Did you mean 'model.depth_options.echoes'?"),
        (["depth=echo", "model.depth_options=3"], "expected names and values"),
    ],
)
def test_invalid_depth_options_are_named_by_their_recipe_key(words, said):
    with pytest.raises(ConfigError) as error:
        compose_recipe(words).check()
    assert said in str(error.value)


@pytest.mark.usefixtures("echo")
def test_costs_of_a_depth_are_added_to_the_training_loss_only():
    model, images, labels = tiny_model(depth="echo"), tiny_images(), torch.tensor([0, 1, 2])
    plain, trained = (float(model.train(mode)(images, labels).loss.detach()) for mode in (False, True))
    assert trained - plain == pytest.approx(6.0, abs=1e-4)


def test_layer_recorder_saves_requested_states_and_maps():
    model, images = tiny_model(depth="stacked", steps=3), tiny_images()
    x0 = model.embed(images)
    recorder = LayerRecorder(x0, 3, SaveAt(steps=(0, 2), attentions=True), {})
    x = x0
    for number, layer in enumerate(model.depth.layers, start=1):
        x = recorder.record(number, recorder.run_layer(layer, x))
    kept = recorder.solution(x)
    full = model(images, save="all").trajectory
    assert (kept.times, len(kept.attentions), kept.stats.nfe) == ((0.0, 2.0), 3, 3)
    torch.testing.assert_close(kept.states[1], full.states[2])
    torch.testing.assert_close(kept.state, full.state)
