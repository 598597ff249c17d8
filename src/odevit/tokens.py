"""[ CLS | patches | registers ]: the shapes that travel through the library, and where each kind of token stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Self

from torch import Tensor

# Annotations only: nothing is checked at run time.
Tokens = Annotated[Tensor, "batch token dim"]
Heads = Annotated[Tensor, "batch head token head_dim"]
AttentionMap = Annotated[Tensor, "batch head query key"]
Pixels = Annotated[Tensor, "batch channel height width"]
Logits = Annotated[Tensor, "batch label"]


@dataclass(frozen=True)
class TokenLayout:
    """[ CLS | patches | registers ]. Slices by name, so that no code counts registers from the end.

    `attention[:, :, layout.cls, layout.patches]` is what CLS looks at in the image, however many registers there are.

    Args:
        has_cls: whether token 0 is the CLS token.
        grid: rows and columns of patches.
        num_registers: how many registers follow the patches.
    """

    has_cls: bool
    grid: tuple[int, int]
    num_registers: int

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def cls(self) -> slice:
        return slice(0, int(self.has_cls))

    @property
    def patches(self) -> slice:
        return slice(self.cls.stop, self.cls.stop + self.num_patches)

    @property
    def registers(self) -> slice:
        return slice(self.patches.stop, self.patches.stop + self.num_registers)

    def __len__(self) -> int:
        return self.registers.stop

    def fitted(self, tokens: int) -> Self:
        """The same order for another number of tokens, whose patches then stand in a square."""
        count = tokens - len(self) + self.num_patches
        if count == self.num_patches:
            return self
        side = math.isqrt(max(0, count))
        if side * side != count or count == 0:
            raise ValueError(
                f"there are {count} patches, and the positions are those of a grid of {self.grid[0]}x{self.grid[1]}; "
                "expected that grid or a square one: resize the images"
            )
        return replace(self, grid=(side, side))


@dataclass(frozen=True)
class PrefixLayout(TokenLayout):
    """[ CLS | registers | patches | appended ]: the order of transformers and timm, and what a student appends to it.

    DeiT's distillation token counts as a register.

    Args:
        num_appended: how many registers of a student follow the patches; none in the teacher itself.
    """

    num_appended: int = 0

    @property
    def registers(self) -> slice:
        return slice(self.cls.stop, self.cls.stop + self.num_registers)

    @property
    def patches(self) -> slice:
        return slice(self.registers.stop, self.registers.stop + self.num_patches)

    @property
    def appended(self) -> slice:
        return slice(self.patches.stop, self.patches.stop + self.num_appended)

    def __len__(self) -> int:
        return self.appended.stop


def gather_tokens(x: Tokens, kept: Tensor) -> Tokens:
    """[batch, token, dim], [batch, k] -> [batch, k, dim]: of every sample the tokens with these numbers."""
    return x.gather(1, kept.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def with_registers(layout: TokenLayout, count: int) -> TokenLayout:
    """The same tokens followed by `count` registers. CLS and patches stay where they are."""
    if count == 0:
        return layout
    if isinstance(layout, PrefixLayout) and layout.num_registers:
        # One slice cannot name registers on both sides of the patches: the teacher's keep the name.
        return replace(layout, num_appended=count)
    return TokenLayout(layout.has_cls, layout.grid, layout.num_registers + count)
