"""x(0) = [CLS; tokens(image); registers] + positions: how an image becomes the start of a trajectory."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.registry import Registry
from odevit.tokens import Pixels, TokenLayout, Tokens

TOKENIZERS: Registry[type[Tokenizer]] = Registry("tokenizer")


class Tokenizer(nn.Module, ABC):
    """[B, C, H, W] -> [B, D, H/s, W/s], s the stride."""

    setting: ClassVar[str]
    """What decides about the stride, for an error."""

    def __init__(self, channels: int, dim: int, patch_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.stride = self.stride_of(patch_size, hidden)

    @staticmethod
    @abstractmethod
    def stride_of(patch_size: int, hidden: Sequence[int]) -> int:
        """s, before anything is made."""


@TOKENIZERS.register("patch")
class PatchTokenizer(Tokenizer):
    """One convolution whose kernel is its stride: every patch on its own, as in ViT."""

    setting = "patch_size"

    def __init__(self, channels: int, dim: int, patch_size: int, hidden: Sequence[int]) -> None:
        super().__init__(channels, dim, patch_size, hidden)
        self.projection = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    @staticmethod
    def stride_of(patch_size: int, hidden: Sequence[int]) -> int:
        return patch_size

    def forward(self, pixels: Pixels) -> Tensor:
        return self.projection(pixels)


@TOKENIZERS.register("conv")
class ConvTokenizer(Tokenizer):
    """(3x3 convolution, ReLU, 3x3/2 max-pooling), repeated: overlapping tokens, as in CCT (Hassani et al. 2021).

    `hidden` are the widths between the convolutions; one more convolution leads to the width of the tokens, and each
    halves the resolution.
    """

    setting = "tokenizer_channels or image_size"

    def __init__(self, channels: int, dim: int, patch_size: int, hidden: Sequence[int]) -> None:
        super().__init__(channels, dim, patch_size, hidden)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
            for before, after in itertools.pairwise([channels, *hidden, dim])
        )
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    @staticmethod
    def stride_of(patch_size: int, hidden: Sequence[int]) -> int:
        return 2 ** (len(hidden) + 1)

    def forward(self, pixels: Pixels) -> Tensor:
        # Channels last: twice as fast on a CPU, and the grid then lies in memory as the tokens that it becomes.
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        for convolution in self.convolutions:
            pixels = self.pool(convolution(pixels).relu())
        return pixels


class Embedding(nn.Module):
    """x(0) = [CLS; tokens(image); registers] + positions.

    Registers stand last and have positions of their own only when `register_positions` is set.
    """

    def __init__(self, config: Any) -> None:
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
        self.own_grid = layout.grid
        positioned = len(layout) if config.register_positions else layout.patches.stop
        self.positions = nn.Parameter(torch.zeros(1, positioned, dim))
        self.dropout = nn.Dropout(config.embedding_dropout)

    def layout(self, height: int, width: int) -> TokenLayout:
        """Where each token is for an image of this size."""
        stride = self.tokenizer.stride
        return TokenLayout(
            self.config.use_cls_token, (height // stride, width // stride), self.config.num_register_tokens
        )

    def forward(self, pixels: Pixels, interpolate_positions: bool = False) -> Tokens:
        layout = self._checked_layout(pixels, interpolate_positions)
        # As for any model of transformers: processors make single precision, whatever the precision of the weights.
        pixels = pixels.to(self.positions.dtype) if pixels.is_floating_point() else pixels
        tokens = self.tokenizer(pixels).flatten(2).transpose(1, 2)
        # Under autocast the tokens come in half precision; the state of the trajectory must not.
        tokens = tokens.to(self.positions.dtype)
        parts = [part for part in (self.cls_token, tokens, self.register_tokens) if part is not None]
        x = torch.cat([part.expand(tokens.shape[0], -1, -1) for part in parts], dim=1)
        positions = self.positions if layout.grid == self.own_grid else self._interpolated(layout)
        return self.dropout(x + F.pad(positions, (0, 0, 0, x.shape[1] - positions.shape[1])))

    def _interpolated(self, layout: TokenLayout) -> Tensor:
        """Learned positions, those of the patches interpolated from the grid they were learned on."""
        own = self.layout(self.config.image_size, self.config.image_size)
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
                    f"the image is {height}x{width}, but tokens are {stride} pixels wide; pass multiples of {stride}"
                )
        return self.layout(height, width)


def stretched(positions: Tensor, grid: tuple[int, int], other: tuple[int, int]) -> Tensor:
    """Positions [1, patch, dim] that were learned on one grid of patches, interpolated to another."""
    image = positions.unflatten(1, grid).permute(0, 3, 1, 2)
    image = F.interpolate(image.float(), size=other, mode="bicubic", align_corners=False).to(positions.dtype)
    return image.flatten(2).transpose(1, 2)
