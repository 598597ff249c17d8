"""W <- W / sigma_max(W): every projection starts with spectral norm 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def spectral_(weight: Tensor) -> Tensor:
    """Xavier-normal, then divided by its largest singular value (LipsFormer, Qi et al. 2023).

    A convolution is taken as the matrix [out, in * kernel]. On a meta device there is nothing to divide.
    """
    nn.init.xavier_normal_(weight)
    if weight.is_meta:
        return weight
    matrix = weight.flatten(1).float()
    return weight.div_(torch.linalg.matrix_norm(matrix, ord=2))
