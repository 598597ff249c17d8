"""What a step of training makes smaller."""

from dataclasses import dataclass

import pytest
import torch

from odevit.core.solver_config import SolverConfig
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.solvers.penalties import PENALTIES, Penalty
from odevit.train.classifier import train_recipe
from odevit.train.compose import compose_recipe
from odevit.train.loss import TrainingLoss
from odevit.train.recipe import Recipe, TrainRecipe
from tests.tiny import tiny_images, tiny_model


def batch():
    torch.manual_seed(0)
    return {"pixel_values": tiny_images(4), "labels": torch.tensor([0, 1, 2, 3])}


def test_without_penalties_it_is_the_loss_of_the_model_on_the_drawn_way():
    model, data = tiny_model().train(), batch()
    for solver_config in (None, SolverConfig("heun", 3, 2.0)):
        assert (
            TrainingLoss.of(TrainRecipe())(model, data, solver_config).item()
            == model(**data, solver_config=solver_config).loss.item()
        )


@pytest.mark.parametrize("name", ["jasmin", "jacobian", "settling", "transport"])
def test_a_penalty_counts_by_its_weight_and_has_a_gradient(name):
    model, data = tiny_model(leak=0.0).train(), batch()  # without a leak nothing comes to rest on its own

    def loss(weight):
        torch.manual_seed(1)  # the estimate of the Jacobian draws a direction
        return TrainingLoss.of(TrainRecipe(**{name: weight}))(model, data, None)

    plain, once, twice = (loss(weight) for weight in (0.0, 0.5, 1.0))
    assert once.item() > plain.item()
    assert (twice - plain).item() == pytest.approx(2 * (once - plain).item(), rel=1e-3)
    (twice - plain).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.field.parameters())


def test_what_has_no_trajectory_or_no_field_is_not_penalised():
    head = Recipe(head_only=True, teacher="somewhere", train=TrainRecipe(transport=1.0))
    assert any("train.transport=0" in problem for problem in head.problems())
    stack = Recipe(train=TrainRecipe(settling=1.0))
    stack.model.depth = "stacked"
    assert any("train.settling=0" in problem for problem in stack.problems())
    student = DistillRecipe(train=TrainRecipe(jasmin=1.0))
    assert any("objective.jasmin" in problem for problem in student.problems())


def test_what_cannot_be_drawn_is_said():
    recipe = Recipe(train=TrainRecipe(solvers=["heum", "dopri5"], own_share=2.0, jacobian=-1.0, jasmin_k=1))
    problems = " ".join(recipe.problems())
    for sentence in ("heun", "dopri5", "train.own_share=2.0", "train.jacobian=-1.0", "train.jasmin_k=1"):
        assert sentence in problems


@pytest.fixture
def drift(monkeypatch):
    """A penalty of someone else's: one decorated class, registered long after the recipes were imported."""
    monkeypatch.setattr(PENALTIES, "_entries", dict(PENALTIES._entries))

    @PENALTIES.register("drift")
    @dataclass(frozen=True)
    class Drift(Penalty):
        """r = |mean x|^p."""

        power: float = 2.0

        def __post_init__(self):
            if self.power <= 0:
                raise ValueError(f"power={self.power}; expected > 0")

        def running(self, step):
            return step.after.mean().abs() ** self.power

    return Drift


def test_a_new_penalty_is_a_key_of_every_recipe(drift, tmp_path):
    words = ["train.drift=0.5", "train.drift_power=1.0", "device=cpu", f"out={tmp_path / 'run'}", "train.epochs=1"]
    recipe = compose_recipe([*words, "model.hidden_size=16", "model.num_attention_heads=2"])
    assert recipe.train.weights == {"drift": 0.5}
    assert recipe.train.penalties == {"drift": drift(1.0)}
    assert "drift: 0.5" in (train_recipe(recipe) / "recipe.yaml").read_text()
    student = compose_distillation(["objective.drift=2"])
    assert student.objective.weights == {"drift": 2.0}
    assert "drift_power=-1.0: power=-1.0; expected > 0" in TrainRecipe(drift_power=-1.0).penalty_problems("train")[0]


def test_a_penalty_that_is_gone_leaves_no_key():
    assert not hasattr(TrainRecipe(), "drift")
    with pytest.raises(TypeError, match="drift"):
        TrainRecipe(drift=1.0)


def test_the_parts_of_a_loss_are_told_as_means():
    model, loss = tiny_model(), TrainingLoss.of(TrainRecipe(transport=0.5, jasmin=0.25))
    totals, plain = [], []
    for _ in range(3):
        data = batch()
        totals.append(loss(model, data, None).item())
        plain.append(model(**data).loss.item())
        loss.accumulate()
    told = loss.pop_means()
    assert set(told) == {"nfe", "loss_transport", "loss_jasmin"}
    parts = told["loss_transport"] + told["loss_jasmin"]
    assert parts == pytest.approx(sum(totals) / 3 - sum(plain) / 3, rel=1e-3)
    assert loss.pop_means() == {}, "told once"


def test_the_adjoint_gives_the_gradient_of_a_neural_ode_and_its_evaluations_are_told():
    data, gradients = batch(), []
    for adjoint in (False, True):
        torch.manual_seed(0)
        model = tiny_model(solver="dopri5", tolerance=1e-5, leak=1.0).train()
        loss = TrainingLoss.of(TrainRecipe(adjoint=adjoint))
        for _ in range(2):
            value = loss(model, data, None)
        value.backward()
        assert set(told := loss.pop_means()) == {"nfe"}
        assert told["nfe"] > 6
        assert loss.pop_means() == {}, "told once"
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, direct in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], direct, rtol=0.02, atol=1e-3 * direct.abs().max().item())


def test_an_adjoint_of_fixed_steps_is_refused_before_training():
    assert any("train.adjoint=true" in problem for problem in Recipe(train=TrainRecipe(adjoint=True)).problems())
    adaptive = compose_recipe(["model.solver=dopri5", "train.transport=0.1", "train.adjoint=true"]).problems()
    assert any("train.transport is added up on fixed steps" in problem for problem in adaptive)


def test_what_a_depth_costs_is_a_part_that_is_told():
    options = {"search": "anderson", "jacobian": 0.5}
    model, data = tiny_model(depth="equilibrium", leak=1.0, solver="exponential_euler", depth_options=options), batch()
    loss = TrainingLoss()
    torch.manual_seed(1)  # the estimate of the Jacobian draws a direction
    loss(model.train(), data, None)
    loss.accumulate()
    torch.manual_seed(1)
    expected = model(**data).trajectory.costs["jacobian"].item()
    assert loss.pop_means()["loss_jacobian"] == pytest.approx(expected, rel=1e-5)
