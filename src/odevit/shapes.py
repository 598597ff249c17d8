"""The shapes that travel through the library, once. Annotations only: nothing is checked at run time."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

Tokens = Annotated[Tensor, "batch token dim"]
Heads = Annotated[Tensor, "batch head token head_dim"]
AttentionMap = Annotated[Tensor, "batch head query key"]
Pixels = Annotated[Tensor, "batch channel height width"]
Logits = Annotated[Tensor, "batch label"]
