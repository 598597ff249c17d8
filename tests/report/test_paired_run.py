"""run_both: distances and answers of student and teacher."""

import pytest
import torch

from odevit import get_ode_model
from odevit.distill.alignment import Alignment
from odevit.distill.teacher import Teacher
from odevit.report.study import Study
from odevit.report.teacher_match import run_both
from tests.tiny import tiny_model
from tests.zoo import images, make

LAYERS = 3
EVEN = Alignment("uniform", (1.0,) * LAYERS)


def company_of(student, teacher, alignment, batches):
    solver_config = Study("run", student, None, teacher).aligned_config
    return run_both(student, teacher, alignment.indices(solver_config.steps), solver_config, batches)


def batches(*sizes):
    pixels = images(batch=sum(sizes))
    return [{"pixel_values": part} for part in pixels.split(sizes)]


def test_run_both_gives_distance_0_for_a_student_equal_to_its_teacher():
    model = make("vit-classifier")
    for block in model.vit.layers[1:]:
        block.load_state_dict(model.vit.layers[0].state_dict())
    student = get_ode_model(model, init="average", horizon=None, steps=LAYERS)
    company = company_of(student, Teacher(model), EVEN, batches(2, 3))
    for group, distances in company.distances.items():
        assert distances.shape == (LAYERS, 5)
        assert (distances <= 1e-5 * company.norms[group]).all()
    assert torch.equal(company.answers, company.teacher_answers)


@pytest.mark.parametrize("name", ["vit-classifier", "dinov2-registers-classifier"])
def test_run_both_gives_the_teachers_movement_for_a_student_that_never_moves(name):
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
    company = company_of(student, teacher, EVEN, [batch])
    for group, place in {"cls": layout.cls, "patches": layout.patches}.items():
        torch.testing.assert_close(company.distances[group], gone[..., place].mean(dim=-1))
        torch.testing.assert_close(company.still[group], company.distances[group])
        norms = torch.stack([h[:, place].norm(dim=-1).mean(dim=1) for h in others])
        torch.testing.assert_close(company.norms[group], norms)


def test_run_both_reads_the_student_at_the_aligned_steps():
    model = make("vit-classifier")
    teacher, student = Teacher(model), get_ode_model(model, steps=12)
    (batch,) = batches(2)
    late = Alignment("arc", (4.0, 1.0, 1.0))
    assert late.indices(12) == (8, 10, 12)
    path = student.states(batch["pixel_values"]).states
    states, place = teacher.states(batch["pixel_values"]), teacher.layout().patches
    expected = [(path[n] - states[layer])[:, place].norm(dim=-1).mean(dim=1) for layer, n in ((1, 8), (2, 10), (3, 12))]
    for known in (batch, {**batch, "x0": student.embed(batch["pixel_values"])}):
        company = company_of(student, teacher, late, [known])
        torch.testing.assert_close(company.distances["patches"], torch.stack(expected))
    assert torch.equal(company.answers, student(batch["pixel_values"]).logits.argmax(-1))


def test_aligned_config_has_a_step_for_every_layer():
    model = make("vit-classifier")
    teacher, student = Teacher(model), get_ode_model(model, steps=2)
    (batch,) = batches(2)
    company = company_of(student, teacher, EVEN, [batch])
    path = student.states(batch["pixel_values"], solver_config=student.solver_config.replace(steps=LAYERS)).states
    expected = (path[-1] - teacher.states(batch["pixel_values"])[-1])[:, 0].norm(dim=-1)
    torch.testing.assert_close(company.distances["cls"][-1], expected)
    assert torch.equal(company.answers, student(batch["pixel_values"]).logits.argmax(-1)), "answers in its own steps"


def test_run_both_without_cls_gives_patches_and_refuses_no_images():
    model = tiny_model(depth="stacked", steps=LAYERS, use_cls_token=False, pooling="mean", mlp_ratio=4.0)
    teacher, student = Teacher(model), get_ode_model(model, steps=6)
    assert set(company_of(student, teacher, EVEN, batches(2)).distances) == {"patches"}
    with pytest.raises(ValueError, match="no images"):
        company_of(student, teacher, EVEN, [])
