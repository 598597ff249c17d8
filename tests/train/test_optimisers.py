"""Muon orthogonalises, and two optimisers behave as one."""

import pytest
import torch
from torch import nn

from odevit.train.optimisers import CombinedOptimizer, Muon, WeightAverage, make_optimiser, orthogonalise
from odevit.train.recipe import TrainRecipe
from tests.tiny import tiny_images, tiny_model


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (40, 10)])
def test_orthogonalise_brings_singular_values_near_one_and_keeps_directions(shape):
    matrices = torch.randn(3, *shape)
    nearest = orthogonalise(matrices)
    values = torch.linalg.svdvals(nearest)
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    alignment = (nearest * (u @ vh)).sum((-2, -1)) / min(shape)
    assert (alignment > 0.8).all()


def test_muon_agrees_with_torch_on_a_matrix():
    """torch's Muon works in bfloat16, ours in float32 on a CPU: equal within that."""
    start = torch.randn(24, 16)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a = Muon([ours], lr=0.02, momentum=0.95, weight_decay=0.1)
    b = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=True)
    # torch mixes as m <- mu m + (1 - mu) g, we as m <- mu m + g; orthogonalising forgets the factor.
    for _ in range(3):
        gradient = torch.randn(24, 16)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        a.step()
        b.step()
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.05 * moved


def test_decay_bounds_the_weights_of_muon():
    """|W| <= 1/decay whatever the gradients, for an update has norm one; without decay it grows with every step."""
    sizes = {}
    for decay in (0.0, 0.5):
        weight = nn.Parameter(torch.zeros(16, 16))
        optimiser = Muon([weight], lr=0.05, weight_decay=decay)
        for _ in range(400):
            weight.grad = torch.eye(16)
            optimiser.step()
        sizes[decay] = torch.linalg.matrix_norm(weight, ord=2).item()
    assert sizes[0.5] < 1.3 / 0.5
    assert sizes[0.0] > 10


def test_muon_takes_the_inner_matrices_and_adamw_the_rest():
    model = tiny_model(tokenizer="conv", pooling="attention")
    optimiser = make_optimiser(model, TrainRecipe(optimizer="muon", learning_rate=1e-3, weight_decay=0.1))
    muon, adamw = optimiser.optimisers
    names = {id(p): name for name, p in model.named_parameters()}
    inner = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    rest = {names[id(p)]: group["weight_decay"] for group in adamw.param_groups for p in group["params"]}
    assert len(inner) == 4 + 2 + 2, "attention, MLP, two convolutions"
    assert set(names.values()) == inner | set(rest)
    assert rest["classifier.weight"] == 0.1
    assert all(decay == 0.0 for name, decay in rest.items() if name.endswith(("bias", "positions", "norm.weight")))


def test_muon_takes_the_matrices_of_every_knot_and_no_factors_of_a_change():
    for overrides, count in (({"knots": 2}, 2 * 6), ({"knots": 2, "rank": 4}, 6)):
        model = tiny_model(**overrides)
        optimiser = make_optimiser(model, TrainRecipe(optimizer="muon", learning_rate=1e-3, weight_decay=0.1))
        muon, adamw = optimiser.optimisers
        inner = {id(p) for group in muon.param_groups for p in group["params"]}
        assert len(inner & {id(p) for p in model.odevit.depth.field.parameters()}) == count
        still = {id(p) for group in adamw.param_groups if group["weight_decay"] == 0.0 for p in group["params"]}
        assert {id(p) for p in model.odevit.depth.field.parameters()} <= inner | still


def test_a_schedule_reaches_every_part_also_after_loading():
    model = tiny_model()
    optimiser = make_optimiser(model, TrainRecipe(optimizer="muon", learning_rate=1e-3, weight_decay=0.1))
    model(tiny_images(), torch.tensor([0, 1, 2])).loss.backward()
    optimiser.step()
    again = make_optimiser(model, TrainRecipe(optimizer="muon", learning_rate=1.0, weight_decay=0.1))
    again.load_state_dict(optimiser.state_dict())
    assert [group["lr"] for part in again.optimisers for group in part.param_groups] == [0.02, 1e-3, 1e-3]
    again.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(again, lambda step: 0.5)
    schedule.step()
    assert [group["lr"] for part in again.optimisers for group in part.param_groups] == [0.01, 5e-4, 5e-4]
    assert len(again.optimisers[0].state) == 7, "attention, MLP and the patch projection have their momenta back"


def test_together_is_an_optimizer_like_any_other():
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    both = CombinedOptimizer(torch.optim.SGD([a], lr=0.5), torch.optim.SGD([b], lr=0.1))
    (a.sum() + b.sum()).backward()
    both.step()
    assert torch.equal(a, torch.full((2, 2), 0.5))
    assert torch.equal(b, torch.full((2,), 0.9))
    both.zero_grad()
    assert a.grad is None


def test_the_weight_average_is_a_weighted_mean_and_leaves_the_weights_as_they_were(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average = WeightAverage(model, decay=0.9)
    expected = 0.0
    for step in range(40):
        nn.init.constant_(model.weight, float(step))
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with average.in_place():
        assert model.weight.item() == pytest.approx(expected, rel=1e-5)
    assert model.weight.item() == 39.0
    average.save(tmp_path / "a.safetensors")
    other = WeightAverage(model, decay=0.9)
    other.load(tmp_path / "a.safetensors")
    assert other.updates == 40
    assert torch.equal(other.average[0], average.average[0])
