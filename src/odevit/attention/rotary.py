"""q_p -> R(2 pi f y_p, 2 pi f x_p) q_p: where a patch stands, as a rotation of its queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from odevit.tokens import Heads, TokenLayout

Rotation = tuple[Tensor, Tensor]
"""cos and sin of every token's angles, [token, head_dim]."""


@dataclass(frozen=True)
class Rotary:
    """Angles 2 pi c f_j, f_j = theta^{-4j/d}, j < d/4, for the coordinates c = y, x in [-1, 1] of a patch's centre.

    As DINOv3 has it (Simeoni et al. 2025): the first quarter of a head turns with y, the second with x, each channel
    together with the one half a head further. Other tokens than patches do not turn.

    A field is handed tokens and no image, so the grid of patches is told from their number: that of `layout`, or else
    a square.

    Args:
        theta: the base of the frequencies.
        layout: of the tokens of an image of the model's own size.
    """

    theta: float
    layout: TokenLayout

    def rotation(self, tokens: int, head_dim: int, device: torch.device) -> Rotation:
        """The rotations of this many tokens."""
        layout = self.layout.fitted(tokens)
        # In single precision whatever the field has: half of it cannot tell the angles of distant patches apart.
        exponents = torch.arange(head_dim // 4, dtype=torch.float32, device=device) * (4 / head_dim)
        centres = [
            2.0 * (torch.arange(count, dtype=torch.float32, device=device) + 0.5) / count - 1.0 for count in layout.grid
        ]
        coordinates = torch.stack(torch.meshgrid(*centres, indexing="ij"), dim=-1).flatten(0, 1)
        angles = (2.0 * math.pi * coordinates[:, :, None] / self.theta**exponents).flatten(1, 2).tile(2)
        around = (0, 0, layout.patches.start, tokens - layout.patches.stop)
        return F.pad(angles.cos(), around, value=1.0), F.pad(angles.sin(), around)


def rotated(heads: Heads, rotation: Rotation) -> Heads:
    """(a, b) -> (a cos - b sin, b cos + a sin) for the two halves a, b of every head."""
    cos, sin = (table.to(heads.dtype) for table in rotation)
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
