"""A journey agrees with the model that it is of."""

import pytest
import torch

from odevit import Teacher, get_ode_model
from odevit.explorer.charts import draw_beliefs, draw_path
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.traces import climb, lens_of, travel
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return Teacher(tiny_model(depth="stacked", steps=3, num_register_tokens=0))


def test_probabilities_sum_to_one_and_end_in_the_answer():
    model = tiny_model(steps=4)
    journey = travel(model, DRAWINGS["ship"]())
    assert torch.allclose(journey.story.probabilities.sum(dim=-1), torch.ones(9), atol=1e-5)
    label, share = journey.story.answer(model.solver_config.horizon)
    assert (label, share) == (journey.answer.label, pytest.approx(journey.answer.share, abs=1e-5))
    assert journey.answer.nfe == 4
    assert travel(model, DRAWINGS["ship"](), solver_config=model.solver_config.replace(solver="heun")).answer.nfe == 8
    assert not journey.changed


def test_heads_average_to_the_mean_and_attention_is_a_share():
    journey = travel(tiny_model(steps=3), DRAWINGS["frog"]())
    assert torch.allclose(journey.heads.mean(dim=1), journey.story.attention, atol=1e-6)
    for maps in (journey.heads, journey.rolled):
        assert (maps >= 0).all()
        assert (maps.sum(dim=(-1, -2)) <= 1 + 1e-5).all()


def test_the_layers_of_a_vit_end_in_its_own_answer(teacher):
    picture = DRAWINGS["truck"]()
    journey = climb(teacher, lens_of(teacher), picture)
    assert journey.story.times == (0.0, 1.0, 2.0, 3.0)
    assert torch.allclose(journey.story.probabilities.sum(dim=-1), torch.ones(4), atol=1e-5)
    assert journey.story.answer(3.0)[1] == pytest.approx(journey.answer.share)


def test_the_lens_reads_the_last_layer_as_the_vit_does(teacher):
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.allclose(lens_of(teacher).readout(teacher.states(pixels)[-1]), teacher.logits(pixels), atol=1e-5)


def test_a_student_and_its_teacher_begin_at_the_same_state(teacher):
    student = get_ode_model(teacher.model, steps=3)
    journey = travel(student, DRAWINGS["frog"](), teacher=teacher)
    assert journey.layers.shape == (4, 32)
    assert torch.allclose(journey.layers[0], journey.read[0], atol=1e-5)
    for figure in (draw_beliefs(journey), draw_path(journey)):
        assert figure.axes
