"""y = W x, |W|_2 = 1 at the start: the matrices of a field, told apart from other linear layers by how they begin."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Projection(nn.Linear):
    """y = W x + b. A linear map inside a field; spectral initialisation looks for this class, so it misses none."""


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
