"""A trace agrees with the model that it is of."""

import pytest
import torch

from odevit import Teacher, get_ode_model
from odevit.explorer.catalog import logit_lens
from odevit.explorer.charts import draw_path, draw_probabilities
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.traces import trace_ode, trace_vit
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return Teacher(tiny_model(depth="stacked", steps=3, num_register_tokens=0))


def test_probabilities_sum_to_one_and_end_in_the_answer():
    model = tiny_model(steps=4)
    trace = trace_ode(model, DRAWINGS["ship"]())
    assert torch.allclose(trace.probabilities.sum(dim=-1), torch.ones(9), atol=1e-5)
    label, share = trace.prediction_at(model.solver_config.horizon)
    assert (label, share) == (trace.prediction.label, pytest.approx(trace.prediction.probability, abs=1e-5))
    assert trace.prediction.nfe == 4
    assert (
        trace_ode(model, DRAWINGS["ship"](), solver_config=model.solver_config.replace(solver="heun")).prediction.nfe
        == 8
    )
    assert not trace.prediction_changed


def test_heads_average_to_the_mean_and_attention_is_a_share():
    trace = trace_ode(tiny_model(steps=3), DRAWINGS["frog"]())
    assert torch.allclose(trace.attention.mean(dim=1), trace.mean_attention, atol=1e-6)
    for maps in (trace.attention, trace.rollout):
        assert (maps >= 0).all()
        assert (maps.sum(dim=(-1, -2)) <= 1 + 1e-5).all()


def test_the_layers_of_a_vit_end_in_its_own_answer(teacher):
    picture = DRAWINGS["truck"]()
    trace = trace_vit(teacher, logit_lens(teacher), picture)
    assert trace.times == (0.0, 1.0, 2.0, 3.0)
    assert torch.allclose(trace.probabilities.sum(dim=-1), torch.ones(4), atol=1e-5)
    assert trace.prediction_at(3.0)[1] == pytest.approx(trace.prediction.probability)


def test_the_lens_reads_the_last_layer_as_the_vit_does(teacher):
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.allclose(logit_lens(teacher).readout(teacher.states(pixels)[-1]), teacher.logits(pixels), atol=1e-5)


def test_a_student_and_its_teacher_begin_at_the_same_state(teacher):
    student = get_ode_model(teacher.model, steps=3)
    trace = trace_ode(student, DRAWINGS["frog"](), teacher=teacher)
    assert trace.teacher.readout.shape == (4, 32)
    assert torch.allclose(trace.teacher.readout[0], trace.readout[0], atol=1e-5)
    for figure in (draw_probabilities(trace), draw_path(trace)):
        assert figure.axes
