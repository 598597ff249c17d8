"""y = W x: the matrices of a field, told apart from other linear layers by how they begin."""

from __future__ import annotations

from torch import nn


class Projection(nn.Linear):
    """y = W x + b. A linear map inside a field; spectral initialisation looks for this class, so it misses none."""
