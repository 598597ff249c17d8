"""classify_path and classify_motion: circles oscillate, lines drift, other paths wander or rest."""

import math

import pytest
import torch

from odevit.analysis.settling import classify_motion, classify_path
from tests.tiny import tiny_model

SURE = torch.tensor([[0.9, 0.05, 0.05]])
CIRCLE = torch.stack([torch.sin(torch.arange(49) / 4), torch.cos(torch.arange(49) / 4)], dim=1) + 5
LINE = torch.stack([torch.linspace(1, 2, 49), torch.linspace(1, 0, 49)], dim=1)
WALK = 50 + torch.randn(49, 400, generator=torch.Generator().manual_seed(0)).cumsum(dim=0)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (CIRCLE, "oscillates"),
        (LINE, "drifts"),
        (1e-5 * CIRCLE + 7, "rests"),
        (WALK, "wanders"),
        (torch.full((49, 2), math.nan), "diverges"),
    ],
)
def test_classify_path_names_the_motion(path, kind):
    assert classify_path(path, SURE.expand(49, -1)).kind == kind


def test_classify_path_lag_is_half_a_period():
    found = classify_path(CIRCLE, SURE.expand(49, -1))
    assert found.lag / 4 == pytest.approx(math.pi, abs=0.2)
    assert found.turn == pytest.approx(-1, abs=0.01)


def test_classify_path_between_two_classes():
    level = torch.tensor([[0.49, 0.46, 0.05]]).expand(49, -1)
    swinging = torch.cat([SURE.expand(25, -1), SURE.flip(1).expand(24, -1)])
    assert not classify_path(LINE, SURE.expand(49, -1)).between
    assert classify_path(LINE, level).between
    assert classify_path(LINE, swinging).answers == (0, 2)
    assert classify_path(LINE, swinging).between


def test_classify_motion_starts_from_the_given_states():
    model = tiny_model(steps=3, leak=1.0)
    x0 = torch.randn(3, len(model.layout()), 32)
    motions = classify_motion(model, 2 * x0, x0, 8.0)
    assert len(motions) == 3
    assert all(motion.moved > 0 for motion in motions)
    (alone,) = classify_motion(model, 2 * x0[1:2], x0[1:2], 8.0)
    assert alone.moved == pytest.approx(motions[1].moved, rel=1e-4), "images do not see each other"
