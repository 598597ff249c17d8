"""Replayed steps compute what ordinary ones do."""

import pytest
import torch

from odevit.core.solver_config import SolverConfig
from odevit.train.cuda_graphs import CapturedStep
from odevit.train.loss import TrainingLoss
from odevit.train.recipe import TrainRecipe
from odevit.train.runner import compile_field
from tests.tiny import tiny_images, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def batch():
    return {"pixel_values": tiny_images(8).cuda(), "labels": torch.rand(8, 5, device="cuda").softmax(-1)}


@pytest.mark.parametrize("compiled", [False, True])
def test_replay_equals_an_ordinary_pass(compiled):
    model = tiny_model(num_register_tokens=0).cuda().train()
    first, second = batch(), batch()
    short, long = (model.solver_config.replace(steps=steps, horizon=horizon) for steps, horizon in ((2, 1.0), (3, 2.0)))
    passes = ((first, short), (second, long), (second, short))
    expected = []
    for data, solver_config in passes:
        model.zero_grad()
        loss = model(**data, solver_config=solver_config).loss
        loss.backward()
        expected.append((loss.item(), [p.grad.clone() for p in model.parameters()]))
    if compiled:
        compile_field(model)
    captured = CapturedStep(model, first, None)
    for (data, solver_config), (loss, gradients) in zip(passes, expected, strict=True):
        model.zero_grad()  # as the Trainer does: sets gradients to None
        assert captured(data, solver_config).item() == pytest.approx(loss, rel=1e-4)
        for gradient, expected in zip([p.grad for p in model.parameters()], gradients, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def test_weights_may_change_between_replays():
    model = tiny_model().cuda().train()
    data, solver_config = batch(), model.solver_config.replace(steps=2, horizon=1.0)
    captured = CapturedStep(model, data, None)
    captured(data, solver_config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    assert captured(data, solver_config).item() == pytest.approx(
        model(**data, solver_config=solver_config).loss.item(), rel=1e-4
    )


def test_a_stack_of_layers_is_replayed_too():
    model = tiny_model(depth="stacked", steps=2).cuda().train()
    data = batch()
    loss = model(**data).loss.item()
    assert CapturedStep(model, data, None)(data, None).item() == pytest.approx(loss, rel=1e-4)


def test_penalties_and_solvers_are_replayed():
    model = tiny_model().cuda().train()
    data, solver_config = batch(), SolverConfig("exponential_euler", 3, 2.0)
    loss = TrainingLoss.of(TrainRecipe(jasmin=0.1, transport=0.2))
    expected, parts = loss(model, data, solver_config).item(), {name: part.item() for name, part in loss.parts.items()}
    step = CapturedStep(model, data, None, loss)
    loss.evaluations.clear()
    assert step(data, solver_config).item() == step(data, solver_config).item() == pytest.approx(expected, rel=1e-4)
    assert loss.evaluations == [3, 3], "replays cost what the step did, and capturing it counts for nothing"
    assert {name: part.item() for name, part in loss.parts.items()} == pytest.approx(parts, rel=1e-4)
