"""Distances to a teacher: none for a student that is its teacher, known ones for a student that stands still."""

import pytest
import torch

from odevit.distill import Teacher, get_ode_model
from odevit.distill.alignment import Alignment
from odevit.distill.distances import standstill_distances, teacher_distances
from tests.distill.zoo import images, make

LAYERS = 3
EVEN = Alignment("uniform", (1.0,) * LAYERS)


def batches(*sizes):
    pixels = images(batch=sum(sizes))
    return [{"pixel_values": part} for part in pixels.split(sizes)]


def test_a_student_that_is_its_teacher_is_at_no_distance():
    model = make("vit-classifier")
    for block in model.vit.layers[1:]:
        block.load_state_dict(model.vit.layers[0].state_dict())
    student = get_ode_model(model, init="average", horizon=None, steps=LAYERS)
    found = teacher_distances(student, Teacher(model), EVEN, batches(2, 3))
    assert found.shape == (LAYERS, 5)
    torch.testing.assert_close(found, torch.zeros(LAYERS, 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["vit-classifier", "dinov2-registers"])
def test_a_student_that_stands_still_is_as_far_as_the_teacher_went(name):
    """With f = 0 the student stays at h_0, so the distance to layer l is |h_l - h_0|."""
    model = make(name)
    teacher, student = Teacher(model), get_ode_model(model, steps=6)
    with torch.no_grad():
        for parameter in student.field.parameters():
            parameter.zero_()
    (batch,) = batches(4)
    first, *others = teacher.states(batch["pixel_values"])
    gone = torch.stack([(h - first).norm(dim=-1) for h in others])  # [layer, image, token]
    layout = teacher.layout()
    expected = {"all": gone, "cls": gone[..., layout.cls], "patches": gone[..., layout.patches]}
    for tokens, each in expected.items():
        found = teacher_distances(student, teacher, EVEN, [batch], tokens=tokens)
        torch.testing.assert_close(found, each.mean(dim=-1))
        torch.testing.assert_close(standstill_distances(teacher, [batch], tokens=tokens), found)


def test_the_student_is_read_where_the_alignment_says():
    model = make("vit-classifier")
    teacher, student = Teacher(model), get_ode_model(model, steps=6)
    (batch,) = batches(2)
    late = Alignment("arc", (4.0, 1.0, 1.0))
    assert late.indices(12) == (8, 10, 12)
    path = student.states(batch["pixel_values"], steps=12).states
    told = teacher.states(batch["pixel_values"])
    expected = [(path[n] - told[layer]).norm(dim=-1).mean(dim=1) for layer, n in ((1, 8), (2, 10), (3, 12))]
    found = teacher_distances(student, teacher, late, [batch], steps=12)
    torch.testing.assert_close(found, torch.stack(expected))


def test_what_cannot_be_measured():
    model = make("siglip")
    teacher, student = Teacher(model), get_ode_model(model, steps=6)
    with pytest.raises(ValueError, match=r"tokens='cls', but the teacher has none of them; pass tokens='all'"):
        teacher_distances(student, teacher, EVEN, batches(2), tokens="cls")
    with pytest.raises(ValueError, match=r"Did you mean 'patches'"):
        teacher_distances(student, teacher, EVEN, batches(2), tokens="patchs")
    with pytest.raises(ValueError, match="no images"):
        teacher_distances(student, teacher, EVEN, [])
    with pytest.raises(ValueError, match=r"3 checkpoints .* do not fit into 2 steps"):
        teacher_distances(student, teacher, EVEN, batches(2), steps=2)
