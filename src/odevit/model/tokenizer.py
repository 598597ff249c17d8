"""[B, C, H, W] -> [B, D, h, w]: how an image becomes a grid of tokens."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from odevit.registry import Registry
from odevit.tokens import Pixels

TOKENIZERS: Registry[type[Tokenizer]] = Registry("tokenizer")


class Tokenizer(nn.Module, ABC):
    """[B, C, H, W] -> [B, D, H/s, W/s], s the stride."""

    stride: int
    setting: ClassVar[str]
    """What decides about the stride, for an error."""

    @staticmethod
    @abstractmethod
    def stride_of(patch_size: int, hidden: Sequence[int]) -> int:
        """s, before anything is made."""

    @abstractmethod
    def forward(self, pixels: Pixels) -> Tensor:
        """The grid of tokens, channels first."""


@TOKENIZERS.register("patch")
class PatchTokenizer(Tokenizer):
    """One convolution whose kernel is its stride: every patch on its own, as in ViT."""

    setting = "patch_size"

    def __init__(self, channels: int, dim: int, patch_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.stride = self.stride_of(patch_size, hidden)
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
        super().__init__()
        widths = [channels, *hidden, dim]
        self.stride = self.stride_of(patch_size, hidden)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
            for before, after in itertools.pairwise(widths)
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
