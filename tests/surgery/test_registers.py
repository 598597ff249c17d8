"""Registers of the student's own: the equation has them, and nobody outside can tell."""

import json

import pytest
import torch

from odevit import OdeStudent, OdeStudentConfig, get_ode_model
from odevit.core.solve import solve
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.tokens import PrefixLayout, TokenLayout
from tests.zoo import ZOO, answers, images, make, teacher_path

SMALL = {"steps": 3, "horizon": 3.0}
OWN = 4


def test_registers_0_gives_the_student_without_registers(tmp_path):
    """The student is the plain equation on the teacher's tokens, bit for bit, from the same random numbers."""
    torch.manual_seed(1)
    student = get_ode_model(make("vit-classifier"), **SMALL)
    following = torch.rand(1)
    torch.manual_seed(1)
    named = get_ode_model(make("vit-classifier"), registers=0, **SMALL)
    assert torch.equal(following, torch.rand(1))
    assert "registers" not in dict(student.encoder.named_parameters())
    pixels = images()
    x0 = student.teacher_embed(pixels)
    plain = solve(student.field, x0, solver="lie_trotter", steps=3, t1=3.0).state
    assert torch.equal(student.encoder.encode_tokens(x0), x0)
    assert torch.equal(teacher_path(student, pixels).state, plain)
    assert torch.equal(teacher_path(named, pixels).state, plain)
    assert student.layout() == student.teacher_layout()

    student.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["registers"]  # as it was written before there were any
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert torch.equal(OdeStudent.from_pretrained(tmp_path)(pixels).logits, student(pixels).logits)


@pytest.mark.parametrize("name", ZOO)
def test_registers_appear_in_no_output_of_the_student(name):
    # torch's own attention, in SigLIP's head, rounds otherwise when its weights are to be trained.
    original, pixels = make(name).requires_grad_(False), images()
    teacher, student = Teacher(original), get_ode_model(original, registers=OWN, **SMALL)
    told = teacher.states(pixels)
    assert torch.equal(student.teacher_embed(pixels), told[0])
    assert [state.shape for state in teacher_path(student, pixels).states] == [state.shape for state in told]
    assert student.teacher_layout(*pixels.shape[-2:]) == teacher.layout(pixels)
    with torch.no_grad():
        read, expected, own = (
            answers(student.teacher_readout(told[-1])),
            answers(original(pixels)),
            answers(student(pixels)),
        )
    assert {key: value.shape for key, value in own.items()} == {key: value.shape for key, value in expected.items()}
    for key, value in expected.items():
        assert torch.equal(read[key], value), key
    inside = student.encoder.encode_tokens(told[0])
    assert inside.shape[1] == told[0].shape[1] + OWN
    assert torch.equal(student.encoder.decode_tokens(inside), inside[:, :-OWN])


@pytest.mark.parametrize("name", ["vit-classifier", "odevit", "dinov3"])
@pytest.mark.parametrize("width", [32, 16])
def test_a_student_with_registers_is_saved_and_loaded(name, width, tmp_path):
    student, pixels = get_ode_model(make(name), registers=OWN, hidden_size=width, **SMALL), images()
    assert student.encoder.registers.shape == (1, OWN, width)
    student.save_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path)
    assert again.config.registers == OWN
    assert torch.equal(again.encoder.registers, student.encoder.registers)
    assert torch.equal(teacher_path(again, pixels).state, teacher_path(student, pixels).state)
    plain = get_ode_model(make(name), hidden_size=width, **SMALL)
    assert sum(p.numel() for p in student.parameters()) - sum(p.numel() for p in plain.parameters()) == OWN * width


def test_logits_depend_on_registers_but_not_on_their_order():
    """Attention and MLP treat tokens alike: registers in another order are the same registers."""
    student, pixels = get_ode_model(make("vit-classifier"), registers=OWN, leak=0.5, **SMALL), images()
    with torch.no_grad():
        student.encoder.registers.normal_()
        before = student(pixels).logits
        student.encoder.registers.copy_(student.encoder.registers.flip(1))
        torch.testing.assert_close(student(pixels).logits, before, atol=1e-5, rtol=1e-5)
        student.encoder.registers.normal_()
    assert not torch.allclose(student(pixels).logits, before, atol=1e-3)


@pytest.mark.parametrize("name", ["vit-classifier", "siglip", "dinov2-registers", "deit", "odevit"])
def test_layout_names_the_registers_and_teacher_layout_does_not(name):
    student, pixels = get_ode_model(make(name), registers=OWN, **SMALL), images()
    outside, inside = student.teacher_layout(*pixels.shape[-2:]), student.layout(*pixels.shape[-2:])
    state = student.encoder.encode_tokens(student.teacher_embed(pixels))
    assert len(inside) == state.shape[1] == len(outside) + OWN
    assert (inside.cls, inside.patches) == (outside.cls, outside.patches)
    place = inside.appended if isinstance(inside, PrefixLayout) else inside.registers
    assert place.stop == len(inside)
    assert torch.equal(state[:, place][:, -OWN:], student.encoder.registers.expand(2, -1, -1))


def test_registers_of_teacher_and_student_are_before_and_after_the_patches():
    student = get_ode_model(make("dinov2-registers"), registers=OWN, **SMALL)
    inside = student.layout()
    assert inside == PrefixLayout(True, (4, 4), 2, OWN)
    assert (inside.registers, inside.patches, inside.appended) == (slice(1, 3), slice(3, 19), slice(19, 23))
    assert get_ode_model(make("odevit"), registers=OWN, **SMALL).layout() == TokenLayout(True, (4, 4), 2 + OWN)


def test_registers_with_positions_take_a_larger_image():
    student = get_ode_model(make("dinov3"), registers=OWN, **SMALL)
    pixels = images(size=24)
    assert teacher_path(student, pixels).state.shape == (2, 39, 32)
    x0 = student.teacher_embed(pixels)
    added = student.encoder.encode_tokens(x0)[:, :39] - x0
    assert torch.equal(added[:, :3], torch.zeros(2, 3, 32)), "positions are of the patches alone"


def test_a_student_with_registers_compiles_as_one_graph():
    student, pixels = get_ode_model(make("vit-classifier"), registers=OWN, **SMALL), images()
    compiled = torch.compile(student, fullgraph=True, backend="eager")
    assert torch.equal(compiled(pixels).logits, student(pixels).logits)


def test_registers_outside_their_range_are_refused():
    with pytest.raises(ConfigError, match=r"registers=-1; expected a whole number, at least 0"):
        OdeStudentConfig(registers=-1)
    with pytest.raises(ConfigError, match=r"registers=1.5"):
        get_ode_model(make("vit"), registers=1.5)
