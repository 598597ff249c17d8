"""three_depths: one field as an ODE, a recurrence and an equilibrium."""

import pytest
import torch

from odevit.analysis.base import frozen as frozen
from odevit.analysis.sweep import three_depths
from tests.tiny import tiny_images, tiny_model

RESTING = {"norm": "layer", "leak": 1.0, "horizon": 20.0, "num_register_tokens": 0}


def views_of(**settings):
    model = tiny_model(**{**RESTING, **settings})
    with frozen(model):
        return three_depths(model, model.embed(tiny_images(4)))


@pytest.mark.parametrize("solver", ["exponential_euler", "dopri5"])
def test_three_depths_agree_at_a_rest_point(solver):
    """A long horizon, and a solver whose rest point is that of the equation: all three end in the same place.

    A model that integrates adaptively has no step of its own to repeat; exponential Euler lends it one.
    """
    views = views_of(solver=solver, steps=40)
    assert all(view.settled for view in views.values())
    torch.testing.assert_close(views["equilibrium"].logits, views["recurrent"].logits, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(views["ode"].logits, views["recurrent"].logits, rtol=2e-2, atol=1e-2)
    assert (views["recurrent"].evaluations == 8 * 40).all()
    assert (views["equilibrium"].evaluations < 100).all()


def test_three_depths_differ_without_an_attractor():
    views = views_of(leak=0.0, solver="lie_trotter", steps=20)
    assert not views["equilibrium"].settled


def test_three_depths_without_autonomy_has_no_equilibrium():
    views = views_of(time_conditioned=True, solver="exponential_euler", steps=40, leak=3.0)
    assert [name for name, view in views.items() if view.settled] == ["ode", "recurrent"]
    assert torch.equal(views["equilibrium"].logits, views["recurrent"].logits), "where it was left"
