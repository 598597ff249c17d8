"""y = W x, |W|_2 = 1 at the start: the matrices of a field, told apart from other linear layers by how they begin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class _Marking(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        linear: Any = nn.Linear(*args, **kwargs)
        linear.is_projection = True
        return linear

    def __instancecheck__(cls, module: object) -> bool:
        return getattr(module, "is_projection", False)


class Projection(nn.Linear, metaclass=_Marking):
    """y = W x + b. A linear map inside a field; spectral initialisation looks for it, so it misses none.

    What is made is an `nn.Linear` with a mark: tools that replace linear layers, such as torch's dynamic quantisation,
    look for exactly that class and would pass over a subclass.
    """


def matrix_of(linear: nn.Module, like: Tensor) -> Tensor:
    """W of y = W x, as the module computes it: its own weight, or what it makes of the unit vectors.

    The latter where the weight is not the whole truth: with an adapter beside it, quantised, or kept elsewhere until
    it is called.

    Args:
        linear: maps the last dimension, which is as wide as that of `like`.
        like: has the dtype and the device of the unit vectors.
    """
    if type(linear) is nn.Linear and "forward" not in vars(linear) and not is_traceable_wrapper_subclass(linear.weight):
        return linear.weight
    return linear(torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)).transpose(-2, -1)


@torch.no_grad()
def spectral_(weight: Tensor) -> Tensor:
    """W <- W / sigma_max(W): Xavier-normal, then divided by its largest singular value (LipsFormer, Qi et al. 2023).

    A convolution is taken as the matrix [out, in * kernel]. On a meta device there is nothing to divide.
    """
    nn.init.xavier_normal_(weight)
    if weight.is_meta:
        return weight
    matrix = weight.flatten(1).float()
    return weight.div_(torch.linalg.matrix_norm(matrix, ord=2))
