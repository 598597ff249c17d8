"""Every registered name: forward, backward, save, load and export."""

import itertools

import pytest
import torch

from odevit import OdeViTForImageClassification, export_program
from odevit.core.attention import ATTENTIONS
from odevit.core.base import DEPTHS, SOLVERS, FixedStepSolver
from odevit.core.embedding import TOKENIZERS
from odevit.core.layers import NORMS
from odevit.core.pooling import POOLINGS
from odevit.errors import ConfigError
from odevit.solvers.early_exit import STOPS
from tests.tiny import tiny_images, tiny_model

SHIFTS_A_SOFTMAX = "odevit.pooling.score.bias"
"""Changes nothing: its gradient is 0, or what rounding makes of it."""


def trained_saved_and_loaded(folder, **settings):
    """The model after a round trip, images, and its answers to them before; every parameter had a gradient."""
    model, images = tiny_model(**settings), tiny_images()
    output = model(images, torch.tensor([0, 1, 2]))
    assert output.trajectory.ok
    output.loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert {*silent} <= {SHIFTS_A_SOFTMAX}, "every parameter takes part"
    model.save_pretrained(folder)
    again = OdeViTForImageClassification.from_pretrained(folder).eval()
    logits = output.logits.detach()
    torch.testing.assert_close(again(images).logits, logits, rtol=1e-6, atol=1e-6)
    return again, images, logits


EVERYTHING = {
    *(("exponential_euler", attention, norm) for attention, norm in itertools.product(ATTENTIONS, NORMS)),
    *zip(SOLVERS, itertools.cycle(ATTENTIONS), itertools.cycle(NORMS), strict=False),
}
"""Every attention with every norm, and every solver once: solvers do not depend on the kind of field."""


@pytest.mark.parametrize(("solver", "attention", "norm"), sorted(EVERYTHING))
def test_every_solver_attention_and_norm_trains_and_exports(solver, attention, norm, tmp_path):
    again, images, logits = trained_saved_and_loaded(tmp_path, solver=solver, attention=attention, norm=norm)
    if issubclass(SOLVERS[solver], FixedStepSolver):
        exported = export_program(again).module()
        torch.testing.assert_close(exported(images[:2]), logits[:2], rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(ValueError, match=r"no fixed graph to export; pass a fixed-step one"):
            export_program(again)


@pytest.mark.parametrize(("tokenizer", "pooling"), list(itertools.product(TOKENIZERS, POOLINGS)))
def test_every_tokenizer_and_pooling_trains_and_is_saved(tokenizer, pooling, tmp_path):
    again, images, logits = trained_saved_and_loaded(
        tmp_path, tokenizer=tokenizer, pooling=pooling, use_cls_token=POOLINGS[pooling].needs_cls, num_register_tokens=0
    )
    layout, state = again.layout(), again.embed(images)
    assert state.shape[1] == len(layout)
    hidden = again.odevit.norm(state)
    weights = again.odevit.pooling.weights(hidden, layout)
    pooled = torch.einsum("bt,btd->bd", weights, hidden)
    torch.testing.assert_close(again.odevit.pooling(hidden, layout), pooled, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(export_program(again).module()(images), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DEPTHS)
def test_every_depth_has_the_properties_that_it_declares(name, tmp_path):
    kind = DEPTHS[name]
    model, images = tiny_model(depth=name, leak=1.0, horizon=4.0, steps=4), tiny_images()
    if kind.trainable:
        again, images, logits = trained_saved_and_loaded(tmp_path, depth=name, leak=1.0)
    else:
        model.save_pretrained(tmp_path)
        again, logits = OdeViTForImageClassification.from_pretrained(tmp_path).eval(), model(images).logits
        torch.testing.assert_close(again(images).logits, logits)
        with pytest.raises(ConfigError):
            model.train()(images)
    assert again.depth.describe()
    if kind.has_trajectory:
        solution = again(images, solver="heun", steps=3, horizon=2.0, save="all").trajectory
        assert (solution.time, len(solution.states), solution.solver_config.name) == (2.0, 4, "heun")
    else:
        with pytest.raises(ConfigError):
            again(images, horizon=again.solver_config.horizon + 0.5)
    for other, their in DEPTHS.items():
        if kind.shares_field and their.shares_field:
            assert again.depth.as_depth(other).field is again.depth.field
        elif other != name:
            with pytest.raises(ValueError, match="share no field"):
                again.depth.as_depth(other)
    if again.depth.export_problem(again.solver_config) is None:
        torch.testing.assert_close(export_program(again).module()(images), logits, rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(ValueError, match="no fixed graph"):
            export_program(again)


@torch.no_grad()
@pytest.mark.parametrize("stop", STOPS)
def test_every_stop_ends_early_and_depends_on_its_tolerance(stop):
    torch.manual_seed(0)
    model, images = tiny_model(leak=1.0, steps=48, horizon=36.0), tiny_images(6)
    path = model(images, save="all").trajectory.states
    criterion = STOPS[stop]()
    own = model(images, stop=criterion).trajectory
    assert 6 <= own.evaluations.sum() < 6 * 48, "some samples stop early"
    reached = torch.stack([path[int(n)][sample] for sample, n in enumerate(own.evaluations)])
    torch.testing.assert_close(own.state, reached, rtol=1e-4, atol=1e-5)
    if not hasattr(criterion, "tolerance"):
        return
    # Evaluations are monotone in the tolerance, in one direction or the other.
    tolerances = [criterion.tolerance * factor for factor in (0.1, 1.0, 10.0)]
    counts = [model(images, stop=f"{stop}:{tolerance:g}").trajectory.evaluations for tolerance in tolerances]
    assert torch.equal(counts[1], own.evaluations)
    low, middle, high = sorted(counts, key=lambda each: int(each.sum()))
    assert torch.equal(middle, counts[1])
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (low < high).any()
