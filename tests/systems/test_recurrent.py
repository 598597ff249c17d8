"""Recurrent depth: input injection, random depth, truncated backpropagation, early exit."""

import math

import pytest
import torch

from odevit.core.base import Request
from odevit.core.solution import SaveAt
from odevit.errors import ConfigError
from odevit.solvers.early_exit import STOPS, Stop
from odevit.systems.layered import LayerRecorder
from tests.tiny import tiny_images, tiny_model


def recurrent(**options):
    torch.manual_seed(0)
    return tiny_model(depth="recurrent", depth_options=options, steps=5)


def carried_on(depth, s, e, steps):
    """s after so many more steps, written out: x' = n_4(y + F(y)), y = n_2(x + G(x)), from A [s; e]."""
    for _ in range(steps):
        s = depth.adapter(torch.cat([s, e], dim=-1)).to(e.dtype)
        for block in depth.core:
            for norm, branch in zip(block.norms, block.field.components.values(), strict=True):
                s = norm(s + branch(s, 0.0))
    return s


def through(blocks, x):
    for block in blocks:
        x = block(x, LayerRecorder(x, 1, SaveAt(), {}), 1)
    return x


@pytest.mark.parametrize(("mean", "spread"), [(9.0, 0.5), (3.0, 0.0)])
def test_draw_has_the_given_mean_and_variance(mean, spread):
    depth, count = recurrent(mean=mean, spread=spread).depth, 4000
    drawn = torch.tensor([depth.draw() for _ in range(count)], dtype=torch.float64)
    assert drawn.min() >= 1
    # A Poisson number with a log-normal rate: var r = E[tau] + var tau.
    variance = (mean - 1) + (mean - 1) ** 2 * math.expm1(spread**2)
    assert drawn.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / count))
    assert drawn.var().item() == pytest.approx(variance, rel=0.25)


def test_training_draws_steps_and_initial_state_and_evaluation_does_not():
    model, images = recurrent(), tiny_images()
    x0 = model.embed(images)
    assert torch.equal(model.follow(x0).state, model.follow(x0).state)
    assert not model.depth.fixed_graph
    model.train()
    assert len({model.follow(x0).stats.steps for _ in range(20)}) > 3
    five = model.depth.resolve(None, 5, None)
    first, second = (model.follow(x0, five) for _ in range(2))
    assert first.stats.steps == second.stats.steps == 5
    assert not torch.allclose(first.state, second.state)
    assert recurrent(mean=1.0).train().depth(x0).stats.steps == 1


@torch.no_grad()
def test_recurrent_depth_equals_its_formula_for_any_number_of_steps():
    model = recurrent(core=2)
    depth, x0 = model.depth, model.embed(tiny_images())
    assert depth.adapter.weight.std().item() == pytest.approx(math.sqrt(2 / (5 * 32)), rel=0.1)
    e = through(depth.prelude, x0)
    for steps in (1, 7):
        solution = depth(x0, Request(depth.resolve(None, steps, None), save="all"))
        s = carried_on(depth, torch.zeros_like(e), e, steps)
        torch.testing.assert_close(solution.states[-1], s, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(solution.state, through(depth.coda, s), rtol=1e-4, atol=1e-4)
        assert (solution.stats.nfe, solution.stats.steps) == (2 + 2 * steps, steps)
        # The sandwich bounds what it makes.
        torch.testing.assert_close(s.square().mean(dim=-1), torch.ones(s.shape[:2]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("half", [False, True])
def test_only_the_last_backprop_steps_have_gradients(half):
    """The gradients are complete, also in mixed precision, where casts of weights are cached."""
    model = recurrent(backprop=2).train()
    depth, x0 = model.depth, model.embed(tiny_images()).detach()
    direction = torch.randn_like(x0)  # the square of a normed state has no gradient
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        solution = depth(x0, Request(depth.resolve(None, 5, None), save="all"))
        (direction * solution.state).mean().backward()
    assert [state.requires_grad for state in solution.states] == [False] * 4 + [True] * 2
    found = {name: parameter.grad.clone() for name, parameter in depth.named_parameters()}
    depth.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        s = carried_on(depth, solution.states[3].detach(), through(depth.prelude, x0), 2)
        (direction * through(depth.coda, s)).mean().backward()
    tolerance = 0.1 if half else 1e-4  # half precision has 8 bits
    for name, parameter in depth.named_parameters():
        distance = (found[name] - parameter.grad).norm()
        assert distance <= tolerance * parameter.grad.norm() + 1e-6, name
    assert all(gradient.abs().sum() > 0 for gradient in found.values())


@torch.no_grad()
@pytest.mark.parametrize("stop", ["kl:0.02", "velocity:0.1", "cosine:0.01", "entropy:0.02", "argmax:2"])
def test_stopped_samples_equal_runs_with_their_number_of_steps(stop):
    model, images = recurrent(core=1), tiny_images(6)
    solution = model(images, steps=30, stop=stop).trajectory
    taken = solution.stop_times.long()
    assert torch.equal(solution.evaluations, 2 + taken)
    assert taken.float().mean() < 30, "some samples stop early"
    for sample, steps in enumerate(taken.tolist()):
        alone = model(images[sample : sample + 1], steps=steps).trajectory
        torch.testing.assert_close(alone.state[0], solution.state[sample], rtol=1e-4, atol=1e-4)


def test_recurrent_depth_accepts_every_stop_in_evaluation_only():
    model, images = recurrent(), tiny_images()
    for name, kind in STOPS.items():
        assert issubclass(kind, Stop)
        assert model(images, stop=name).trajectory.evaluations.shape == (3,)
    with pytest.raises(ConfigError, match=r"call model\.eval\(\) first"):
        model.train()(images, stop="kl")
    with pytest.raises(ConfigError, match="save and penalties are not possible"):
        model.eval()(images, stop="kl", save="all")
