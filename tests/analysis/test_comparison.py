"""One field, three depths."""

import torch

from odevit.analysis.depths import three_depths
from odevit.analysis.subject import Subject, untouched
from tests.model.tiny import tiny_images, tiny_model

RESTING = {"norm": "layer", "leak": 1.0, "horizon": 20.0, "num_register_tokens": 0}


def test_they_agree_where_the_trajectory_has_come_to_rest():
    """A long horizon, and a solver whose rest point is that of the equation: all three end in the same place."""
    torch.manual_seed(0)
    model = tiny_model(**RESTING, solver="exponential_euler", steps=40)
    subject = Subject.of(model)
    with untouched(model):
        views = three_depths(subject, subject.embed(tiny_images(4)))
    assert all(view.settled for view in views.values())
    torch.testing.assert_close(views["equilibrium"].logits, views["recurrent"].logits, rtol=1e-2, atol=2e-3)
    torch.testing.assert_close(views["ode"].logits, views["recurrent"].logits, rtol=2e-2, atol=1e-2)
    assert (views["recurrent"].evaluations == 320).all()
    assert (views["equilibrium"].evaluations < 100).all()


def test_without_an_attractor_they_do_not():
    torch.manual_seed(0)
    model = tiny_model(**{**RESTING, "leak": 0.0}, solver="lie_trotter", steps=20)
    subject = Subject.of(model)
    with untouched(model):
        views = three_depths(subject, subject.embed(tiny_images(4)))
    assert not views["equilibrium"].settled
