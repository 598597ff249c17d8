"""A trace agrees with the model that it is of."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from odevit import Teacher, get_ode_model, load
from odevit.analysis.attention import AttentionPath, attention_over_time
from odevit.cli.commands import predict
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import attention_over_layers
from odevit.explorer.catalog import logit_lens
from odevit.explorer.charts import draw_path, draw_probabilities
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.traces import TeacherTrace, interpolate, relative_speed, trace_ode, trace_vit
from odevit.surgery.configuration_student import OdeStudentConfig
from tests.tiny import tiny_model
from tests.zoo import make

EPS = torch.finfo(torch.float32).eps


def picture(width=16, height=16, mode="RGB"):
    noise = torch.randint(0, 256, (height, width, len(mode)), dtype=torch.uint8).squeeze(-1)
    return Image.fromarray(noise.numpy(), mode)


def test_interpolate_is_linear_between_times_and_constant_outside():
    times, values = (0.0, 1.0, 3.0), torch.tensor([[1.0, 0.0], [3.0, 1.0], [7.0, -1.0]])
    for n, t in enumerate(times):
        assert torch.equal(interpolate(values, times, t), values[n])
    torch.testing.assert_close(interpolate(values, times, 2.0), torch.tensor([5.0, 0.0]))
    torch.testing.assert_close(interpolate(values, times, 0.25), torch.tensor([1.5, 0.25]))
    assert torch.equal(interpolate(values, times, -1.0), values[0])
    assert torch.equal(interpolate(values, times, 9.0), values[-1])


def test_relative_speed_of_exponential_decay_is_its_rate():
    times, h = tuple(n / 100 for n in range(101)), 0.01
    states = tuple(
        torch.exp(torch.tensor(-0.7 * t, dtype=torch.float64)) * torch.ones(1, 4, 3, dtype=torch.float64) for t in times
    )
    speed = relative_speed(AttentionPath(times, torch.ones(1), states, ""))
    exact = (torch.tensor(0.7 * h, dtype=torch.float64).exp() - 1) / h  # of the steps; the rate itself as h -> 0
    torch.testing.assert_close(speed, exact.expand_as(speed))


def test_layer_at_follows_the_starts_and_ends_in_the_last_layer():
    trace = TeacherTrace(torch.zeros(3, 2, 2), torch.zeros(4, 8), (0.0, 1.5, 4.0))
    assert [trace.layer_at(t) for t in (0.0, 1.49, 1.5, 3.99, 4.0, 100.0)] == [0, 0, 1, 1, 2, 2]


def test_trace_ode_predicts_the_same_as_predict_at_the_horizon(tmp_path):
    tiny_model(steps=4, horizon=2.0).save_pretrained(tmp_path / "model")
    picture(20, 12).save(tmp_path / "noise.png")
    (expected,) = predict([tmp_path / "noise.png"], model=tmp_path / "model", top=5)
    trace = trace_ode(load(tmp_path / "model"), Image.open(tmp_path / "noise.png"), "noise", horizons=1.5)
    assert trace.times == pytest.approx((0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0))
    label, share = trace.prediction_at(2.0)
    assert label == expected.labels[0][0]
    assert share == pytest.approx(expected.labels[0][1], rel=64 * EPS)
    assert trace.input_size == (16, 16)


def test_trace_ode_has_the_attention_of_attention_over_time():
    model, image = tiny_model(steps=3), picture()
    trace = trace_ode(model, image, "noise")
    pixels = model.image_processor(image, return_tensors="pt")["pixel_values"]
    path = attention_over_time(model, pixels, model.solver_config.stretched(2))
    assert trace.times == path.times
    torch.testing.assert_close(trace.mean_attention, path.heads[:, 0].mean(1))
    assert trace.query == path.query
    assert len(trace.speed) == len(trace.midpoints) == 6


def test_trace_ode_has_the_horizon_among_its_times_for_other_solvers():
    trace = trace_ode(tiny_model(), picture(), "noise", solver_config=SolverConfig("heun", 5, 3.0), horizons=1.3)
    assert trace.horizon == 3.0
    assert trace.times[5] == pytest.approx(3.0)
    assert len(trace.times) == 7, "1.3 horizons are 6.5 steps, which round to 6"


def test_top_classes_are_the_predicted_class_then_the_closest_rivals():
    trace = trace_ode(tiny_model(steps=4), picture(), "noise")
    probabilities = torch.zeros(9, 5)
    probabilities[:, 0] = 0.1
    probabilities[2, 3], probabilities[1, 4] = 0.8, 0.3  # believed once
    probabilities[4:, 2] = 0.4  # the answer, from the horizon on
    trace = replace(trace, probabilities=probabilities)
    assert trace.top_classes() == [2, 3, 4]
    assert trace.prediction_at(trace.times[2])[0] == trace.label(3)


def test_trace_ode_reads_images_in_grey_for_one_channel():
    model = tiny_model(num_channels=1, image_mean=[0.5], image_std=[0.5])
    colour, grey = picture(), picture().convert("L")
    assert trace_ode(model, colour, "colour").probabilities.shape == (5, 5)
    assert trace_ode(model, grey, "grey").probabilities.shape == (5, 5)


def test_label_is_the_first_synonym_or_the_number():
    trace = replace(trace_ode(tiny_model(), picture(), "noise"), labels={0: "tench, Tinca tinca"})
    assert trace.label(0) == "tench"
    assert trace.label(1) == "class 1"


def test_trace_ode_has_the_attention_and_the_starts_of_a_teacher(tmp_path):
    vit = make("vit-classifier")
    vit.save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    vit = type(vit).from_pretrained(tmp_path).eval()
    student = get_ode_model(vit, OdeStudentConfig(steps=4, horizon=2.0))
    teacher, image = Teacher(vit), picture()
    trace = trace_ode(student, image, "noise", teacher=teacher, layer_shares=(0.25, 0.25, 0.5))
    assert trace.teacher.starts == pytest.approx((0.0, 0.5, 1.0))
    pixels = student.image_processor(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(trace.teacher.attention, attention_over_layers(teacher, pixels).mean[:, 0])
    assert trace_ode(student, image, "noise", teacher=teacher).teacher.starts == pytest.approx((0.0, 2 / 3, 4 / 3))


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return Teacher(tiny_model(depth="stacked", steps=3, num_register_tokens=0))


def test_trace_ode_probabilities_sum_to_one_and_agree_with_the_prediction():
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


def test_attention_of_heads_and_rollout_are_shares_of_one():
    trace = trace_ode(tiny_model(steps=3), DRAWINGS["frog"]())
    assert torch.allclose(trace.attention.mean(dim=1), trace.mean_attention, atol=1e-6)
    for maps in (trace.attention, trace.rollout):
        assert (maps >= 0).all()
        assert (maps.sum(dim=(-1, -2)) <= 1 + 1e-5).all()


def test_trace_vit_ends_in_the_prediction_of_the_vit(teacher):
    picture = DRAWINGS["truck"]()
    trace = trace_vit(teacher, logit_lens(teacher), picture)
    assert trace.times == (0.0, 1.0, 2.0, 3.0)
    assert torch.allclose(trace.probabilities.sum(dim=-1), torch.ones(4), atol=1e-5)
    assert trace.prediction_at(3.0)[1] == pytest.approx(trace.prediction.probability)


def test_logit_lens_of_the_last_layer_equals_the_logits(teacher):
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.allclose(logit_lens(teacher).readout(teacher.states(pixels)[-1]), teacher(pixels).logits, atol=1e-5)


def test_student_and_teacher_start_at_the_same_readout(teacher):
    student = get_ode_model(teacher.model, steps=3)
    trace = trace_ode(student, DRAWINGS["frog"](), teacher=teacher)
    assert trace.teacher.readout.shape == (4, 32)
    assert torch.allclose(trace.teacher.readout[0], trace.readout[0], atol=1e-5)
    for figure in (draw_probabilities(trace), draw_path(trace)):
        assert figure.axes
