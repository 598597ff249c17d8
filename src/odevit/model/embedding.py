"""x(0) = [CLS; tokens(image); registers] + positions: where a trajectory starts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.model.configuration_odevit import OdeViTConfig
from odevit.model.tokenizer import TOKENIZERS
from odevit.tokens import Pixels, TokenLayout, Tokens


class Embedding(nn.Module):
    """x(0) = [CLS; tokens(image); registers] + positions.

    Registers stand last and have positions of their own only when `register_positions` is set.
    """

    def __init__(self, config: OdeViTConfig) -> None:
        super().__init__()
        dim = config.hidden_size
        self.config = config
        self.tokenizer = TOKENIZERS[config.tokenizer](
            config.num_channels, dim, config.patch_size, config.tokenizer_channels
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if config.use_cls_token else None
        count = config.num_register_tokens
        self.register_tokens = nn.Parameter(torch.zeros(1, count, dim)) if count else None
        layout = self.layout(config.image_size, config.image_size)
        positioned = len(layout) if config.register_positions else layout.patches.stop
        self.positions = nn.Parameter(torch.zeros(1, positioned, dim))
        self.dropout = nn.Dropout(config.embedding_dropout)

    def layout(self, height: int, width: int) -> TokenLayout:
        """Where each token stands for an image of this size."""
        stride = self.tokenizer.stride
        return TokenLayout(
            self.config.use_cls_token, (height // stride, width // stride), self.config.num_register_tokens
        )

    def forward(self, pixels: Pixels, interpolate_positions: bool = False) -> Tokens:
        layout = self._checked_layout(pixels, interpolate_positions)
        tokens = self.tokenizer(pixels).flatten(2).transpose(1, 2)
        # Under autocast the tokens come in half precision; the state of the trajectory must not.
        tokens = tokens.to(self.positions.dtype)
        batch = tokens.shape[0]
        parts = [tokens]
        if self.cls_token is not None:
            parts.insert(0, self.cls_token.expand(batch, -1, -1))
        if self.register_tokens is not None:
            parts.append(self.register_tokens.expand(batch, -1, -1))
        x = torch.cat(parts, dim=1)
        positions = self._positions(layout)
        missing = x.shape[1] - positions.shape[1]
        return self.dropout(x + F.pad(positions, (0, 0, 0, missing)) if missing else x + positions)

    def _positions(self, layout: TokenLayout) -> Tensor:
        """Learned positions, those of the patches interpolated when the grid is not the one they were learned on."""
        own = self.layout(self.config.image_size, self.config.image_size)
        if layout.grid == own.grid:
            return self.positions
        before, after = self.positions[:, own.cls], self.positions[:, own.registers]
        patches = stretched(self.positions[:, own.patches], own.grid, layout.grid)
        return torch.cat([before, patches, after], dim=1)

    def _checked_layout(self, pixels: Pixels, interpolate: bool) -> TokenLayout:
        size, stride = self.config.image_size, self.tokenizer.stride
        if pixels.ndim != 4 or pixels.shape[1] != self.config.num_channels:
            raise ValueError(
                f"pixel_values has the shape {tuple(pixels.shape)}; expected "
                f"[batch, {self.config.num_channels}, height, width] (num_channels={self.config.num_channels})"
            )
        height, width = pixels.shape[2:]
        if (height, width) != (size, size):
            if not interpolate:
                raise ValueError(
                    f"the image is {height}x{width}, the model was made for {size}x{size}; resize it "
                    "(the model's image processor does), or pass interpolate_pos_encoding=True to stretch the positions"
                )
            if height % stride or width % stride:
                raise ValueError(
                    f"the image is {height}x{width}, but tokens are {stride} pixels wide; "
                    f"pass sizes that {stride} divides"
                )
        return self.layout(height, width)


def stretched(positions: Tensor, grid: tuple[int, int], other: tuple[int, int]) -> Tensor:
    """Positions [1, patch, dim] that were learned on one grid of patches, interpolated to another."""
    image = positions.unflatten(1, grid).permute(0, 3, 1, 2)
    image = F.interpolate(image.float(), size=other, mode="bicubic", align_corners=False).to(positions.dtype)
    return image.flatten(2).transpose(1, 2)
