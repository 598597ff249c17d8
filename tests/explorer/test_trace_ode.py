"""The numbers of a film are those of the model."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from odevit import load
from odevit.analysis.attention import AttentionPath, attention_over_time
from odevit.cli.answering import predict
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import Teacher, attention_over_layers
from odevit.explorer.traces import TeacherTrace, interpolate, relative_speed, trace_ode
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.surgery import get_ode_model
from tests.tiny import tiny_model
from tests.zoo import make

EPS = torch.finfo(torch.float32).eps


def picture(width=16, height=16, mode="RGB"):
    noise = torch.randint(0, 256, (height, width, len(mode)), dtype=torch.uint8).squeeze(-1)
    return Image.fromarray(noise.numpy(), mode)


def test_between_is_exact_at_the_times_and_straight_between_them():
    times, values = (0.0, 1.0, 3.0), torch.tensor([[1.0, 0.0], [3.0, 1.0], [7.0, -1.0]])
    for n, t in enumerate(times):
        assert torch.equal(interpolate(values, times, t), values[n])
    torch.testing.assert_close(interpolate(values, times, 2.0), torch.tensor([5.0, 0.0]))
    torch.testing.assert_close(interpolate(values, times, 0.25), torch.tensor([1.5, 0.25]))
    assert torch.equal(interpolate(values, times, -1.0), values[0])
    assert torch.equal(interpolate(values, times, 9.0), values[-1])


def test_the_speed_of_exponential_decay_is_its_rate():
    times, h = tuple(n / 100 for n in range(101)), 0.01
    states = tuple(
        torch.exp(torch.tensor(-0.7 * t, dtype=torch.float64)) * torch.ones(1, 4, 3, dtype=torch.float64) for t in times
    )
    speed = relative_speed(AttentionPath(times, torch.ones(1), states, ""))
    exact = (torch.tensor(0.7 * h, dtype=torch.float64).exp() - 1) / h  # of the steps; the rate itself as h -> 0
    torch.testing.assert_close(speed, exact.expand_as(speed))


def test_a_layer_lasts_from_its_start_to_the_next_and_the_last_one_for_good():
    trace = TeacherTrace(torch.zeros(3, 2, 2), torch.zeros(4, 8), (0.0, 1.5, 4.0))
    assert [trace.layer_at(t) for t in (0.0, 1.49, 1.5, 3.99, 4.0, 100.0)] == [0, 0, 1, 1, 2, 2]


def test_at_the_horizon_a_trace_says_what_predict_says(tmp_path):
    tiny_model(steps=4, horizon=2.0).save_pretrained(tmp_path / "model")
    picture(20, 12).save(tmp_path / "noise.png")
    (expected,) = predict([tmp_path / "noise.png"], model=tmp_path / "model", top=5)
    trace = trace_ode(load(tmp_path / "model"), Image.open(tmp_path / "noise.png"), "noise", horizons=1.5)
    assert trace.times == pytest.approx((0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0))
    label, share = trace.prediction_at(2.0)
    assert label == expected.labels[0][0]
    assert share == pytest.approx(expected.labels[0][1], rel=64 * EPS)
    assert trace.input_size == (16, 16)


def test_attention_is_the_mean_over_heads_of_the_same_trajectory():
    model, image = tiny_model(steps=3), picture()
    trace = trace_ode(model, image, "noise")
    pixels = model.image_processor(image, return_tensors="pt")["pixel_values"]
    path = attention_over_time(model, pixels, model.solver_config.stretched(2))
    assert trace.times == path.times
    torch.testing.assert_close(trace.mean_attention, path.heads[:, 0].mean(1))
    assert trace.query == path.query
    assert len(trace.speed) == len(trace.midpoints) == 6


def test_another_way_keeps_the_horizon_on_the_grid():
    trace = trace_ode(tiny_model(), picture(), "noise", solver_config=SolverConfig("heun", 5, 3.0), horizons=1.3)
    assert trace.horizon == 3.0
    assert trace.times[5] == pytest.approx(3.0)
    assert len(trace.times) == 7, "1.3 horizons are 6.5 steps, which round to 6"


def test_the_answer_comes_first_then_its_closest_rivals():
    trace = trace_ode(tiny_model(steps=4), picture(), "noise")
    probabilities = torch.zeros(9, 5)
    probabilities[:, 0] = 0.1
    probabilities[2, 3], probabilities[1, 4] = 0.8, 0.3  # believed once
    probabilities[4:, 2] = 0.4  # the answer, from the horizon on
    trace = replace(trace, probabilities=probabilities)
    assert trace.top_classes() == [2, 3, 4]
    assert trace.prediction_at(trace.times[2])[0] == trace.label(3)


def test_one_channel_is_read_as_grey():
    model = tiny_model(num_channels=1, image_mean=[0.5], image_std=[0.5])
    colour, grey = picture(), picture().convert("L")
    assert trace_ode(model, colour, "colour").probabilities.shape == (5, 5)
    assert trace_ode(model, grey, "grey").probabilities.shape == (5, 5)


def test_names_of_classes():
    trace = replace(trace_ode(tiny_model(), picture(), "noise"), labels={0: "tench, Tinca tinca"})
    assert trace.label(0) == "tench"
    assert trace.label(1) == "class 1"


def test_a_teacher_stands_beside_its_student_at_its_own_times(tmp_path):
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
