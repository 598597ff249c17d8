"""q_p -> R(2 pi f y_p, 2 pi f x_p) q_p: the position of a patch as a rotation of its queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from odevit.core.attention import Rotation
from odevit.core.base import HOOKS
from odevit.tokens import Heads, TokenLayout


@HOOKS.register("rotary")
@dataclass(frozen=True)
class Rotary:
    """Angles 2 pi c f_j, f_j = theta^{-4j/d}, j < d/4, for the coordinates c = y, x in [-1, 1] of a patch's centre.

    As in DINOv3 (Simeoni et al. 2025): y rotates the first quarter of a head and x the second, each channel together
    with the one half a head further. Tokens other than patches are not rotated.

    A field gets tokens and not the image: the grid of patches is that of `layout`, or, for another number of tokens, a
    square.

    Args:
        theta: the base of the frequencies.
        layout: the layout of the tokens for the model's image size.
    """

    theta: float
    layout: TokenLayout

    def rotation(self, tokens: int, head_dim: int, device: torch.device) -> Rotation:
        """The rotations of this many tokens."""
        layout = self.layout.fitted(tokens)
        # In single precision: half precision cannot distinguish the angles of distant patches.
        exponents = torch.arange(head_dim // 4, dtype=torch.float32, device=device) * (4 / head_dim)
        centres = [
            2.0 * (torch.arange(count, dtype=torch.float32, device=device) + 0.5) / count - 1.0 for count in layout.grid
        ]
        coordinates = torch.stack(torch.meshgrid(*centres, indexing="ij"), dim=-1).flatten(0, 1)
        angles = (2.0 * math.pi * coordinates[:, :, None] / self.theta**exponents).flatten(1, 2).tile(2)
        padding = (0, 0, layout.patches.start, tokens - layout.patches.stop)
        return F.pad(angles.cos(), padding, value=1.0), F.pad(angles.sin(), padding)

    @staticmethod
    def rotate(heads: Heads, rotation: Rotation) -> Heads:
        """(a, b) -> (a cos - b sin, b cos + a sin) for the two halves a, b of every head."""
        cos, sin = (table.to(heads.dtype) for table in rotation)
        first, second = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat([-second, first], dim=-1) * sin
