"""[ CLS | patches | registers ]: where each kind of token stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLayout:
    """[ CLS | patches | registers ]. Slices by name, so that nobody cuts registers off by counting from the end.

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
