"""The numbers of a film are those of the model."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from odevit import verbs
from odevit.analysis.attention import AttentionPath, attention_over_time, teacher_attention
from odevit.analysis.load import image_processor
from odevit.analysis.subject import Subject
from odevit.distill import OdeEncoderConfig, Teacher, get_ode_model
from odevit.explore.story import Layers, _speed, between, tell
from tests.distill.zoo import make
from tests.model.tiny import tiny_model


def picture(width=16, height=16, mode="RGB"):
    noise = torch.randint(0, 256, (height, width, len(mode)), dtype=torch.uint8).squeeze(-1)
    return Image.fromarray(noise.numpy(), mode)


def test_between_is_exact_at_the_times_and_straight_between_them():
    times, values = (0.0, 1.0, 3.0), torch.tensor([[1.0, 0.0], [3.0, 1.0], [7.0, -1.0]])
    for n, t in enumerate(times):
        assert torch.equal(between(values, times, t), values[n])
    torch.testing.assert_close(between(values, times, 2.0), torch.tensor([5.0, 0.0]))
    torch.testing.assert_close(between(values, times, 0.25), torch.tensor([1.5, 0.25]))
    assert torch.equal(between(values, times, -1.0), values[0])
    assert torch.equal(between(values, times, 9.0), values[-1])


def test_the_speed_of_exponential_growth_is_its_rate():
    times = tuple(n / 100 for n in range(101))
    states = tuple(torch.exp(torch.tensor(-0.7 * t, dtype=torch.float64)) * torch.ones(1, 4, 3) for t in times)
    speed = _speed(AttentionPath(times, torch.ones(1), states, ""))
    torch.testing.assert_close(speed, torch.full_like(speed, 0.7), rtol=5e-3, atol=0)


def test_a_layer_lasts_from_its_start_to_the_next_and_the_last_one_for_good():
    layers = Layers(torch.zeros(3, 2, 2), (0.0, 1.5, 4.0))
    assert [layers.at(t) for t in (0.0, 1.49, 1.5, 3.99, 4.0, 100.0)] == [0, 0, 1, 1, 2, 2]


def test_at_the_horizon_a_story_says_what_predict_says(tmp_path):
    tiny_model(steps=4, horizon=2.0).save_pretrained(tmp_path / "model")
    picture(20, 12).save(tmp_path / "noise.png")
    (expected,) = verbs.predict([tmp_path / "noise.png"], model=tmp_path / "model", top=5)
    subject = Subject.of(verbs.load_model(tmp_path / "model").eval())
    story = tell(subject, Image.open(tmp_path / "noise.png"), "noise", beyond=1.5)
    assert story.times == pytest.approx((0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0))
    label, share = story.answer(2.0)
    assert label == expected.labels[0][0]
    assert share == pytest.approx(expected.labels[0][1], abs=1e-6)
    assert story.seen == (16, 16)


def test_attention_is_the_mean_over_heads_of_the_same_trajectory():
    subject, image = Subject.of(tiny_model(steps=3)), picture()
    story = tell(subject, image, "noise")
    pixels = image_processor(subject)(image, return_tensors="pt")["pixel_values"]
    path = attention_over_time(subject, pixels, steps=6, horizon=2.0)
    assert story.times == path.times
    torch.testing.assert_close(story.attention, path.heads[:, 0].mean(1))
    assert story.query == path.query
    assert len(story.speed) == len(story.middles) == 6


def test_other_steps_keep_the_horizon_on_the_grid():
    story = tell(Subject.of(tiny_model(horizon=3.0)), picture(), "noise", steps=5, solver="heun", beyond=1.3)
    assert story.times[5] == pytest.approx(3.0)
    assert len(story.times) == 7, "1.3 horizons are 6.5 steps, which are 6"
    assert tell(Subject.of(tiny_model()), picture(), "noise", horizon=7.0).horizon == 7.0


def test_the_answer_comes_first_then_what_came_nearest():
    story = tell(Subject.of(tiny_model(steps=4)), picture(), "noise")
    beliefs = torch.zeros(9, 5)
    beliefs[:, 0] = 0.1
    beliefs[2, 3], beliefs[1, 4] = 0.8, 0.3  # once believed
    beliefs[4:, 2] = 0.4  # the answer, from the horizon on
    told = replace(story, probabilities=beliefs)
    assert told.likeliest() == [2, 3, 4]
    assert told.answer(story.times[2])[0] == story.label(3)


def test_one_channel_is_read_as_grey():
    subject = Subject.of(tiny_model(num_channels=1, image_mean=[0.5], image_std=[0.5]))
    colour, grey = picture(), picture().convert("L")
    assert tell(subject, colour, "colour").probabilities.shape == (5, 5)
    assert tell(subject, grey, "grey").probabilities.shape == (5, 5)


def test_names_of_classes():
    story = tell(Subject.of(tiny_model()), picture(), "noise")
    named = replace(story, labels={0: "tench, Tinca tinca"})
    assert named.label(0) == "tench"
    assert named.label(1) == "class 1"


def test_a_teacher_stands_beside_its_student_at_its_own_times(tmp_path):
    vit = make("vit-classifier")
    vit.config.image_mean, vit.config.image_std = [0.5] * 3, [0.5] * 3
    student = Subject.of(get_ode_model(vit, OdeEncoderConfig(steps=4, horizon=2.0)))
    teacher, image = Teacher(vit), picture()
    story = tell(student, image, "noise", teacher=teacher, shares=(0.25, 0.25, 0.5))
    assert story.layers.starts == pytest.approx((0.0, 0.5, 1.0))
    pixels = image_processor(student)(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(story.layers.attention, teacher_attention(teacher, pixels).mean[:, 0])
    even = tell(student, image, "noise", teacher=teacher)
    assert even.layers.starts == pytest.approx((0.0, 2 / 3, 4 / 3))
