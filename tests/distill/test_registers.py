"""Registers of the student: the field has them, the teacher and its head do not."""

import pytest
import torch

from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.distill.alignment import Alignment
from odevit.distill.bound_stopping import BoundStopping
from odevit.distill.distillation import StoppingRecipe, compose_distillation
from odevit.distill.loss import LayerDistillation
from odevit.distill.objective import DistillObjective
from odevit.distill.teacher import Teacher
from odevit.objectives.attention_matching import attention_kl, attention_l1
from odevit.surgery.surgery import get_ode_model
from odevit.train.folder import RunFolder
from tests.zoo import images, make

OWN = 4
EVEN = Alignment("uniform", (1.0,) * 3)
CLASSIFIERS = ["vit-classifier", "dinov2-registers-classifier", "odevit"]


def distillation(name, objective=None, **student):
    teacher = Teacher(make(name))
    pupil = get_ode_model(teacher.model, **{"steps": 6, "horizon": 3.0, "registers": OWN, **student})
    return LayerDistillation(pupil, teacher, EVEN, objective or DistillObjective()).train()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_training_step_moves_registers_and_keeps_the_teachers_readout(name):
    network, pixels = distillation(name, leak=0.5), images()
    registers = network.student.encoder.registers
    before = registers.detach().clone()
    answer = network.teacher(pixels).logits
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    network(pixels).loss.backward()
    assert (registers.grad.abs().sum(dim=(0, 2)) > 0).all(), "every one of them"
    optimiser.step()
    assert not torch.equal(registers, before)
    assert torch.equal(network.student.teacher_readout(network.teacher.states(pixels)[-1]).logits, answer)


def test_teacher_forced_segments_start_with_the_learned_registers():
    network, pixels = (
        distillation("vit-classifier", DistillObjective(logits=0.0, teacher_forcing=0.5), leak=0.5),
        images(),
    )
    encoder, layers = network.student.encoder, network.teacher.states(pixels)
    own = encoder.registers.expand(2, -1, -1)
    anchor, start = torch.cat([layers[0], own], dim=1), torch.cat([layers[1], own], dim=1)
    end = solve(encoder.field.dynamics(anchor), start, solver="lie_trotter", steps=2, t0=1.0, t1=2.0).state
    stretches = network._teacher_forced_states(layers, {2: 1, 4: 2, 6: 3}, network.student.solver_config)
    torch.testing.assert_close(stretches[1], end[:, :17])
    network(pixels).loss.backward()
    assert encoder.registers.grad.abs().sum() > 0


@pytest.mark.parametrize(("part", "distance"), [("attention_l1", attention_l1), ("attention_kl", attention_kl)])
def test_attention_losses_compare_only_the_teachers_tokens(part, distance):
    network, pixels = distillation("vit-classifier", DistillObjective(**{part: 1.0})), images()
    theirs = network.teacher(pixels, attentions=True).attentions
    maps = network.student.states(pixels, save=SaveAt(attentions=True)).attentions
    assert maps[0].shape[-2:] == (17 + OWN, 17 + OWN)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 4, 17 + OWN))
    distances = [distance(maps[n - 1][..., :17, :17], q)["loss"] for n, q in zip((2, 4, 6), theirs, strict=True)]
    torch.testing.assert_close(network(pixels).parts[part], torch.stack(distances).mean())


@pytest.mark.parametrize("lipschitz", [0.5, 0.0])
def test_bound_stopping_measures_errors_with_registers(lipschitz, tmp_path):
    network = distillation("vit-classifier", leak=0.5)
    stopping = BoundStopping(network, images(), StoppingRecipe("curvature", lipschitz=lipschitz), RunFolder(tmp_path))
    errors, bound, measured = stopping.measure()
    layers = network.teacher.states(images())
    path = network.student.states(images(), solver="euler").states
    expected = [(path[n] - h).flatten(1).norm(dim=1).mean().item() for n, h in zip((2, 4, 6), layers[1:], strict=True)]
    assert errors == pytest.approx(expected, rel=1e-5)
    assert bound > 0
    assert measured == lipschitz if lipschitz else measured > 0


def test_paper_recipe_has_ten_registers():
    recipe = compose_distillation(["experiment=paper/distill-cifar100", "teacher=somewhere"])
    assert recipe.student_config().registers == 10
