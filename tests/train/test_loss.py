"""What a step of training makes smaller."""

import pytest
import torch

from odevit.distill.recipe import DistillRecipe
from odevit.train.integration import Drawn
from odevit.train.loss import TrainingLoss
from odevit.train.recipe import Recipe, TrainRecipe
from tests.model.tiny import tiny_images, tiny_model


def batch():
    torch.manual_seed(0)
    return {"pixel_values": tiny_images(4), "labels": torch.tensor([0, 1, 2, 3])}


def test_without_penalties_it_is_the_loss_of_the_model_as_it_was_drawn():
    model, data = tiny_model().train(), batch()
    for drawn in (Drawn(), Drawn("heun", 3, 2.0)):
        expected = model(**data, solver=drawn.solver, steps=drawn.steps, horizon=drawn.horizon).loss
        assert TrainingLoss.of(TrainRecipe())(model, data, drawn).item() == expected.item()


@pytest.mark.parametrize("name", ["jasmin", "jacobian", "settling", "transport"])
def test_a_penalty_counts_by_its_weight_and_has_a_gradient(name):
    model, data = tiny_model(leak=0.0).train(), batch()  # without a leak nothing comes to rest by itself

    def loss(weight):
        torch.manual_seed(1)  # the estimate of the Jacobian draws a direction
        return TrainingLoss.of(TrainRecipe(**{name: weight}))(model, data, Drawn())

    plain, once, twice = (loss(weight) for weight in (0.0, 0.5, 1.0))
    assert once.item() > plain.item()
    assert (twice - plain).item() == pytest.approx(2 * (once - plain).item(), rel=1e-3)
    (twice - plain).backward()
    field = model.odevit.depth.field
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in field.parameters())


def test_what_has_no_trajectory_or_no_rest_is_not_penalised():
    head = Recipe(head_only=True, teacher="somewhere", train=TrainRecipe(transport=1.0))
    assert any("train.transport=0" in problem for problem in head.problems())
    stack = Recipe(train=TrainRecipe(settling=1.0))
    stack.model.depth = "stacked"
    assert any("train.settling=0" in problem for problem in stack.problems())
    student = DistillRecipe(train=TrainRecipe(jasmin=1.0))
    assert any("objective.jasmin" in problem for problem in student.problems())


def test_what_cannot_be_drawn_is_said():
    recipe = Recipe(train=TrainRecipe(solvers=["heum", "dopri5"], own=2.0, jacobian=-1.0, jasmin_k=1))
    problems = " ".join(recipe.problems())
    for said in ("heun", "dopri5", "train.own=2.0", "train.jacobian=-1.0", "train.jasmin_k=1"):
        assert said in problems
