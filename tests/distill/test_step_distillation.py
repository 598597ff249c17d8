"""An ODE-ViT that learns to predict in fewer steps."""

import json

import pytest
import torch

from odevit import load
from odevit.core.solver_config import SolverConfig
from odevit.distill.distill_task import comparison, distill_recipe
from odevit.distill.distillation import compose_distillation
from odevit.distill.objective import DistillObjective
from odevit.distill.step_distillation import StepDistillation
from odevit.errors import ConfigError
from tests.tiny import tiny_images, tiny_model
from tests.train.start import words

GOAL = DistillObjective(cls=0.0, patches=0.0, others=1.0, logits=1.0)


def pair(**settings):
    torch.manual_seed(0)
    teacher = tiny_model(leak=0.0, solver="euler", steps=6, horizon=3.0, **settings).eval().requires_grad_(False)
    student = tiny_model(leak=0.0, solver="euler", steps=6, horizon=3.0, **settings)
    student.load_state_dict(teacher.state_dict())
    return StepDistillation(student, teacher, GOAL)


def test_step_loss_is_zero_in_the_teachers_steps_and_positive_in_fewer():
    network, images = pair(), tiny_images(4)
    assert network(images, solver_config=network.teacher.solver_config).loss.item() < 1e-8
    assert network(images, solver_config=network.solver_config.replace(steps=2)).loss.item() > 1e-4


@pytest.mark.parametrize(("steps", "fine"), [(2, 6), (3, 6), (4, 8), (6, 6), (8, 8)])
def test_target_has_the_teachers_states_at_the_ends_of_the_students_steps(steps, fine):
    network, images = pair(), tiny_images(2)
    states, logits = network.target(images, SolverConfig("euler", steps, 3.0))
    path = network.teacher(images, steps=fine, save="all").trajectory
    assert len(states) == steps
    for n, state in enumerate(states, start=1):
        torch.testing.assert_close(state, path.states[n * fine // steps])
    torch.testing.assert_close(logits, network.teacher(images, steps=fine).logits)


def test_training_lowers_the_loss_in_few_steps_and_in_many():
    """On the images it learns from, drawn in turn; and no gradient reaches the teacher."""
    network, images = pair(), tiny_images(8)
    few, many = network.solver_config.replace(steps=2), network.solver_config
    before = network(images, solver_config=few).loss.item()
    optimiser = torch.optim.Adam(network.student.parameters(), lr=2e-3)
    for update in range(40):
        optimiser.zero_grad()
        network(images, solver_config=few if update % 2 else many).loss.backward()
        optimiser.step()
    assert network(images, solver_config=few).loss.item() < 0.5 * before
    assert network(images, solver_config=many).loss.item() < 0.5 * before
    assert all(parameter.grad is None for parameter in network.teacher.parameters())


def test_distill_of_an_ode_run_gives_a_student_of_fewer_steps(tmp_path):
    teacher = tmp_path / "teacher"
    tiny_model(steps=6, horizon=3.0, solver="euler", image_size=8, num_labels=10).save_pretrained(teacher)
    small = {"device": "cpu", "train.epochs": 1, "train.batch_size": 256, "out": str(tmp_path / "run")}
    recipe = compose_distillation(words({"teacher": str(teacher), "student.steps": 3, "data": "digits", **small}))
    recipe.check()
    folder = distill_recipe(recipe)
    student = load(folder)
    assert (student.solver_config.steps, student.solver_config.name, student.solver_config.horizon) == (3, "euler", 3.0)
    record = json.loads((folder / "record.json").read_text())
    assert (record["nfe"], record["teacher"]["nfe"], record["labels"]) == (3, 6, 0)
    assert {"agreement", "untaught_top1", "many_steps_top1"} <= set(record)
    assert [row["nfe"] for row in comparison(folder)] == [6, 3]
    for word, why in {
        "student.leak=1": "student.leak: the student of an ODE is that ODE",
        "knots=4": "knots: the student of an ODE is that ODE",
        "objective.pooled=1": "objective.pooled: all tokens and the logits of an ODE are matched",
        "phases.rollout.share=1": "phases.rollout.share: an ODE has no layers to match",
    }.items():
        with pytest.raises(ConfigError, match=why):
            compose_distillation([f"teacher={teacher}", word])
    compose_distillation([f"teacher={teacher}", "objective.others=2", "student.grid=geometric:4", "phases=none"])


def test_step_distillation_refuses_adaptive_solvers(tmp_path):
    tiny_model(steps=6, horizon=3.0, solver="dopri5", image_size=8, num_labels=10).save_pretrained(tmp_path / "teacher")
    given = {"teacher": str(tmp_path / "teacher"), "data": "digits", "device": "cpu", "out": str(tmp_path / "run")}
    recipe = compose_distillation(words({**given, "student.steps": 3}))
    with pytest.raises(ConfigError, match=r"student\.steps=3 was asked of dopri5.*student\.solver=heun"):
        distill_recipe(recipe)
