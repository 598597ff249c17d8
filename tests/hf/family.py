"""The four kinds of model that transformers meets: a classifier, its encoder, a stacked one, a distilled student."""

import torch
from torch.utils._pytree import tree_leaves

from odevit import OdeViTModel, get_ode_model
from tests.tiny import tiny_config, tiny_model
from tests.zoo import images, make

STEPS = 4
FAMILY = {
    "classifier": lambda steps: tiny_model(steps=steps),
    "encoder": lambda steps: OdeViTModel(tiny_config(steps=steps)).eval(),
    "stacked": lambda steps: tiny_model(depth="stacked", steps=steps),
    "student": lambda steps: get_ode_model(make("vit-classifier"), steps=steps, horizon=1.0).eval(),
}
OURS = ["classifier", "stacked"]
"""Those whose head is our own; a student has its teacher's."""


def member(name, steps=STEPS):
    torch.manual_seed(0)
    return FAMILY[name](steps)


def pictures(batch=3):
    """The same ones at every call."""
    return images(batch)


def first(output):
    """Logits, or the last states of what has no head."""
    return output[0]


def loss_of(model, images):
    """A number to differentiate: a model with a head has its own."""
    if isinstance(model, OdeViTModel):
        return model(images).last_hidden_state.square().mean()
    return model(images, labels=torch.arange(len(images))).loss


def close(found, expected, dtype=torch.float32, factor=256):
    """Equal up to rounding in `dtype`: a multiple of its epsilon and of the largest number there is."""
    eps = max(torch.finfo(dtype).eps, torch.finfo(found.dtype).eps)
    bound = factor * eps * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=0, atol=bound)


def only_tensors(output):
    return all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output))
