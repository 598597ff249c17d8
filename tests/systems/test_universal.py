"""Universal Transformer: timing signal and adaptive computation time."""

import math

import pytest
import torch

from odevit.core.base import Request
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.systems.universal import HaltingState, timing_signal
from odevit.train.evaluate import evaluate_batches
from tests.tiny import tiny_images, tiny_model

BLOCK = {"solver": "lie_trotter", "steps": 1, "t1": 1.0}


@pytest.fixture
def model():
    """A model whose tokens halt after different numbers of steps, some of them never."""
    torch.manual_seed(0)
    model = tiny_model(depth="universal", steps=6)
    with torch.no_grad():
        model.depth.halting.weight.normal_(std=0.5)
        model.depth.halting.bias.fill_(-1.0)
    return model


def weights_of(p, eps):
    """Graves (2016), one token at a time: the probabilities of its steps -> the weights of its states."""
    weights, total = [], 0.0
    for n, each in enumerate(p, start=1):
        ends = total + each > 1 - eps or n == len(p)
        weights.append(1 - total if ends else each)
        if ends:
            break
        total += each
    return weights + [0.0] * (len(p) - len(weights)), len(weights)


def test_halting_weights_sum_to_one_and_only_the_remainder_has_gradient():
    torch.manual_seed(0)
    p = (torch.rand(6, 4, 5) * 0.6).requires_grad_()
    with torch.no_grad():
        p[:, 0, 0] = 0.01  # never halts
    act = HaltingState(torch.empty(4, 5, 3), eps=0.01)
    weights = torch.stack([act.update(p[n], last=n == 5) for n in range(6)])
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(4, 5))
    act.cost.backward()
    for i in range(4):
        for j in range(5):
            expected, steps = weights_of(p[:, i, j].tolist(), 0.01)
            assert weights[:, i, j].tolist() == pytest.approx(expected, abs=1e-6)
            assert act.steps[i, j] == steps
            # n + r, r = 1 - (p_1 + ... + p_{n-1}): every step but the last lowers the remainder, n does not move.
            slopes = [-1 / 20 if n < steps - 1 else 0.0 for n in range(6)]
            assert p.grad[:, i, j].tolist() == pytest.approx(slopes, abs=1e-7)
    assert act.truncated.sum() == sum(
        weights_of(p[:, i, j].tolist(), 0.01)[0][5] > 0.01 for i in range(4) for j in range(5)
    )
    assert act.truncated[0, 0]


@torch.no_grad()
def test_result_is_the_weighted_sum_of_states_and_halted_tokens_keep_theirs(model):
    depth, x = model.depth, model.embed(tiny_images())
    kept = depth(x, Request(save="all"))
    p = torch.stack(
        [depth.halting(x + timing_signal(x, n)).squeeze(-1).sigmoid() for n, x in enumerate(kept.states[:-1], 1)]
    )
    answer = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            weights, steps = weights_of(p[:, i, j].tolist(), depth.eps)
            for n in range(6):
                answer[i, j] += weights[n] * kept.states[n + 1][i, j]
                assert torch.equal(kept.states[n + 1][i, j], kept.states[n][i, j]) == (n >= steps)
    torch.testing.assert_close(kept.state, answer, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_halted_samples_are_not_computed(model):
    images, seen = tiny_images(8), []
    with torch.no_grad():
        model.depth.halting.bias.fill_(0.5)
    model.depth.field.components["mlp"].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    solution = model(images).trajectory
    assert sum(seen) == int(solution.evaluations.sum())
    assert seen == sorted(seen, reverse=True)
    assert min(seen) < 8, "some samples stop early"
    assert solution.stats.nfe == solution.evaluations.max()
    together = model(images, save="all").trajectory  # kept states are those of all samples
    torch.testing.assert_close(solution.state, together.state, rtol=1e-5, atol=1e-5)
    assert torch.equal(solution.evaluations, together.evaluations)


def test_tokens_that_never_halt_are_reported_as_unsettled(model):
    with torch.no_grad():
        model.depth.halting.bias.fill_(-50.0)
    images = tiny_images()
    solution = model(images).trajectory
    assert solution.ok
    assert (solution.evaluations == 6).all()
    tokens = 3 * len(model.layout())
    assert f"{tokens} of {tokens} tokens had not halted after 6 steps" in solution.status
    assert "the weight of their last state is 1.00 on average. Allow more steps." in solution.status
    score = evaluate_batches(model, [{"pixel_values": images, "labels": torch.tensor([0, 1, 2])}])
    assert score.failure == solution.notice
    assert (score.unsettled, score.warning) == (1.0, f"{solution.notice} In all, 100.0% of the 3 images.")
    with torch.no_grad():
        model.depth.halting.bias.fill_(50.0)
        at_once = model(images).trajectory
    assert (at_once.notice, at_once.stats.nfe) == (None, 1)


def test_initial_halting_unit_halts_after_two_steps():
    depth = tiny_model(depth="universal", steps=6).depth
    assert depth.halting.bias.item() == 1.0
    solution = depth(torch.zeros(2, 19, 32))
    assert (solution.evaluations == 2).all(), "sigmoid(1) is 0.73, and twice that is more than one"


def test_ponder_cost_is_added_in_training_and_favours_halting(model):
    images, labels = tiny_images(), torch.tensor([0, 1, 2])
    output = model.train()(images, labels)
    plain = model.eval()(images, labels).loss
    cost = output.trajectory.costs["ponder"]
    assert output.loss.item() - plain.item() == pytest.approx(cost.item(), rel=1e-3, abs=1e-5)
    cost.backward()
    assert model.depth.halting.bias.grad < 0, "halting earlier costs less"


@torch.no_grad()
def test_universal_depth_without_halting_adds_the_timing_signal():
    model = tiny_model(depth="universal", depth_options={"halting": False}, steps=3)
    x0 = x = model.embed(tiny_images())
    dim = x.shape[-1]
    for n in range(1, 5):
        p = torch.tensor(
            [
                [wave(i / 10_000 ** (j / (dim // 2))) + wave(n / 10_000 ** (j / (dim // 2))) for wave in waves]
                for i in range(x.shape[1])
                for waves in [[math.sin], [math.cos]]
                for j in range(dim // 2)
            ]
        ).reshape(x.shape[1], dim)
        torch.testing.assert_close(timing_signal(x, n), p, rtol=1e-4, atol=1e-5)
        x = solve(model.depth.field, x + p, **BLOCK).state
    torch.testing.assert_close(model.follow(x0, model.depth.resolve(None, 4, None)).state, x, rtol=1e-4, atol=1e-4)
    assert model.follow(x0).stats.nfe == 3
    with pytest.raises(ValueError, match="pass steps=4"):
        model.follow(x0, SolverConfig("heun", 4, 1.0))
