"""module, weights -> a module that computes with these weights."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from odevit.time_varying.flat_weights import Weights

M = TypeVar("M", bound=nn.Module)


def functional_copy(module: M, weights: Weights, prefix: str = "") -> M:
    """A copy of a module that computes with these tensors, by the names of its parameters.

    Only the tree is new: nothing is exchanged in the module itself, which other threads may be using. The tensors are
    its buffers, so that it can be moved and cast, and gradients reach whatever they were made of.
    """
    if "forward" in vars(module):
        raise ValueError(
            f"a {type(module).__name__} has a forward of its own, as Accelerate gives modules whose weights it moves: "
            "it would not see the weights between knots. Load the model whole, without offloading or device_map='auto'"
        )
    if hasattr(module, "_packed_params"):
        raise ValueError(
            f"the weights of a quantised {type(module).__name__} are packed and cannot be blended; quantise a field "
            "with knots=1 or blend='constant', and vector_knots=None"
        )
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    own = module._parameters
    given = {name: weights[prefix + name] for name, weight in own.items() if weight is not None}
    copy.__dict__["_parameters"] = {name: None for name in own if name not in given}
    copy.__dict__["_buffers"] = module._buffers | given
    copy.__dict__["_modules"] = {
        name: None if part is None else functional_copy(part, weights, f"{prefix}{name}.")
        for name, part in module._modules.items()
    }
    return copy
