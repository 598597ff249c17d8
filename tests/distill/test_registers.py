"""Registers of the student's own: the equation has them, and nobody outside can tell."""

import json

import pytest
import torch

from odevit.analysis.subject import Subject
from odevit.depth import Integration
from odevit.distill import OdeEncoderConfig, OdeStudent, PrefixLayout, Teacher, get_ode_model
from odevit.distill.alignment import Alignment
from odevit.distill.objective import DistillObjective
from odevit.distill.step import Distillation
from odevit.distill.stopping import BoundStopping, StoppingRecipe
from odevit.errors import ConfigError
from odevit.model.layout import TokenLayout
from odevit.objectives import attention_kl, attention_l1
from odevit.solver import Save, solve
from tests.distill.zoo import ZOO, answers, images, make

SMALL = {"steps": 3, "horizon": 3.0}
OWN = 4
EVEN = Alignment("uniform", (1.0,) * 3)
CLASSIFIERS = ["vit-classifier", "dinov2-registers-classifier", "odevit"]


def distillation(name, objective=None, **student):
    teacher = Teacher(make(name))
    pupil = get_ode_model(teacher.model, **{"steps": 6, "horizon": 3.0, "registers": OWN, **student})
    return Distillation(pupil, teacher, EVEN, objective or DistillObjective()).train()


def test_without_registers_nothing_has_changed(tmp_path):
    """The student is the plain equation on the teacher's tokens, bit for bit, from the same random numbers."""
    torch.manual_seed(1)
    student = get_ode_model(make("vit-classifier"), **SMALL)
    following = torch.rand(1)
    torch.manual_seed(1)
    named = get_ode_model(make("vit-classifier"), registers=0, **SMALL)
    assert torch.equal(following, torch.rand(1))
    assert "registers" not in dict(student.encoder.named_parameters())
    pixels = images()
    x0 = student.embed(pixels)
    plain = solve(student.field, x0, solver="lie_trotter", steps=3, t1=3.0).state
    assert torch.equal(student.encoder.enter(x0), x0)
    assert torch.equal(student.states(pixels).state, plain)
    assert torch.equal(named.states(pixels).state, plain)
    assert student.inner_layout() == student.layout()

    student.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "encoder.json").read_text())
    del content["registers"]  # as it was written before there were any
    (tmp_path / "encoder.json").write_text(json.dumps(content))
    assert torch.equal(OdeStudent.from_pretrained(tmp_path)(pixels).logits, student(pixels).logits)


@pytest.mark.parametrize("name", ZOO)
def test_nobody_outside_sees_them(name):
    # torch's own attention, in SigLIP's head, rounds otherwise when its weights are to be trained.
    original, pixels = make(name).requires_grad_(False), images()
    teacher, student = Teacher(original), get_ode_model(original, registers=OWN, **SMALL)
    told = teacher.states(pixels)
    assert torch.equal(student.embed(pixels), told[0])
    assert [state.shape for state in student.states(pixels).states] == [state.shape for state in told]
    assert student.layout(pixels) == teacher.layout(pixels)
    with torch.no_grad():
        read, expected, own = answers(student.readout(told[-1])), answers(original(pixels)), answers(student(pixels))
    assert {key: value.shape for key, value in own.items()} == {key: value.shape for key, value in expected.items()}
    for key, value in expected.items():
        assert torch.equal(read[key], value), key
    inside = student.encoder.enter(told[0])
    assert inside.shape[1] == told[0].shape[1] + OWN
    assert torch.equal(student.encoder.leave(inside), inside[:, :-OWN])


@pytest.mark.parametrize("name", ["vit-classifier", "odevit", "dinov3"])
@pytest.mark.parametrize("width", [32, 16])
def test_saved_and_loaded(name, width, tmp_path):
    student, pixels = get_ode_model(make(name), registers=OWN, hidden_size=width, **SMALL), images()
    assert student.encoder.registers.shape == (1, OWN, width)
    student.save_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path)
    assert again.config.registers == OWN
    assert torch.equal(again.encoder.registers, student.encoder.registers)
    assert torch.equal(again.states(pixels).state, student.states(pixels).state)
    plain = get_ode_model(make(name), hidden_size=width, **SMALL)
    assert sum(p.numel() for p in student.parameters()) - sum(p.numel() for p in plain.parameters()) == OWN * width


def test_the_answer_depends_on_them_but_not_on_their_order():
    """Attention and MLP treat tokens alike: registers in another order are the same registers."""
    student, pixels = get_ode_model(make("vit-classifier"), registers=OWN, leak=0.5, **SMALL), images()
    with torch.no_grad():
        student.encoder.registers.normal_()
        before = student(pixels).logits
        student.encoder.registers.copy_(student.encoder.registers.flip(1))
        torch.testing.assert_close(student(pixels).logits, before, atol=1e-5, rtol=1e-5)
        student.encoder.registers.normal_()
    assert not torch.allclose(student(pixels).logits, before, atol=1e-3)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_training_step_moves_them(name):
    network, pixels = distillation(name, leak=0.5), images()
    registers = network.student.encoder.registers
    before = registers.detach().clone()
    told = network.teacher.logits(pixels)
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    network(pixels).loss.backward()
    assert (registers.grad.abs().sum(dim=(0, 2)) > 0).all(), "every one of them"
    optimiser.step()
    assert not torch.equal(registers, before)
    assert torch.equal(network.student.readout(network.teacher.states(pixels)[-1]).logits, told)


def test_forced_stretches_begin_with_the_learned_registers():
    network, pixels = distillation("vit-classifier", DistillObjective(logits=0.0, forced=0.5), leak=0.5), images()
    encoder, told = network.student.encoder, network.teacher.states(pixels)
    own = encoder.registers.expand(2, -1, -1)
    anchor, start = torch.cat([told[0], own], dim=1), torch.cat([told[1], own], dim=1)
    end = solve(encoder.field.dynamics(anchor), start, solver="lie_trotter", steps=2, t0=1.0, t1=2.0).state
    stretches = network._forced(told, (2, 4, 6), None, 6)
    torch.testing.assert_close(stretches[1], end[:, :17])
    network(pixels).loss.backward()
    assert encoder.registers.grad.abs().sum() > 0


@pytest.mark.parametrize(("part", "distance"), [("attention_l1", attention_l1), ("attention_kl", attention_kl)])
def test_attention_is_compared_on_the_teachers_tokens(part, distance):
    network, pixels = distillation("vit-classifier", DistillObjective(**{part: 1.0})), images()
    told = network.teacher(pixels, attentions=True)
    maps = network.student.encoder.integrate(told.states[0], Integration(save=Save(attentions=True))).attentions
    assert maps[0].shape[-2:] == (17 + OWN, 17 + OWN)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 4, 17 + OWN))
    each = [distance(maps[n - 1][..., :17, :17], q)["loss"] for n, q in zip((2, 4, 6), told.attentions, strict=True)]
    torch.testing.assert_close(network(pixels).parts[part], torch.stack(each).mean())


@pytest.mark.parametrize("name", ["vit-classifier", "siglip", "dinov2-registers", "deit", "odevit"])
def test_the_layout_inside_names_them(name):
    student, pixels = get_ode_model(make(name), registers=OWN, **SMALL), images()
    outside, inside = student.layout(pixels), student.inner_layout(pixels)
    state = student.encoder.enter(student.embed(pixels))
    assert len(inside) == state.shape[1] == len(outside) + OWN
    assert (inside.cls, inside.patches) == (outside.cls, outside.patches)
    place = inside.appended if isinstance(inside, PrefixLayout) else inside.registers
    assert place.stop == len(inside)
    assert torch.equal(state[:, place][:, -OWN:], student.encoder.registers.expand(2, -1, -1))
    assert Subject.of(student).layout == inside


def test_two_kinds_of_registers_stand_on_both_sides_of_the_patches():
    student = get_ode_model(make("dinov2-registers"), registers=OWN, **SMALL)
    inside = student.inner_layout()
    assert inside == PrefixLayout(True, (4, 4), 2, OWN)
    assert (inside.registers, inside.patches, inside.appended) == (slice(1, 3), slice(3, 19), slice(19, 23))
    assert get_ode_model(make("odevit"), registers=OWN, **SMALL).inner_layout() == TokenLayout(True, (4, 4), 2 + OWN)


def test_with_positions_on_a_larger_image():
    student = get_ode_model(make("dinov3"), registers=OWN, **SMALL)
    pixels = images(size=24)
    assert student.states(pixels).state.shape == (2, 39, 32)
    x0 = student.embed(pixels)
    added = student.encoder.enter(x0)[:, :39] - x0
    assert torch.equal(added[:, :3], torch.zeros(2, 3, 32)), "positions are of the patches alone"


def test_a_student_with_registers_compiles_as_one_graph():
    student, pixels = get_ode_model(make("vit-classifier"), registers=OWN, **SMALL), images()
    compiled = torch.compile(student, fullgraph=True, backend="eager")
    assert torch.equal(compiled(pixels).logits, student(pixels).logits)


@pytest.mark.parametrize("lipschitz", [0.5, 0.0])
def test_the_bound_is_measured_with_them(lipschitz, tmp_path):
    network = distillation("vit-classifier", leak=0.5)
    stopping = BoundStopping(network, images(), StoppingRecipe("curvature", lipschitz=lipschitz), tmp_path)
    errors, bound, found = stopping.measure()
    told = network.teacher.states(images())
    path = network.student.states(images(), solver="euler").states
    expected = [(path[n] - h).flatten(1).norm(dim=1).mean().item() for n, h in zip((2, 4, 6), told[1:], strict=True)]
    assert errors == pytest.approx(expected, rel=1e-5)
    assert bound > 0
    assert found == lipschitz or lipschitz == 0


def test_how_many_there_can_be():
    with pytest.raises(ConfigError, match=r"registers=-1; expected a whole number, at least 0"):
        OdeEncoderConfig(registers=-1)
    with pytest.raises(ConfigError, match=r"registers=1.5"):
        get_ode_model(make("vit"), registers=1.5)


def test_the_papers_recipe_has_ten():
    from odevit.distill.compose import compose_distillation

    recipe = compose_distillation(["experiment=paper/distill-cifar100", "teacher=somewhere"])
    assert recipe.student_config().registers == 10
