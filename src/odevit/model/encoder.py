"""x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r]: one equation in the place of a list of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.depth import DEPTHS, Depth
from odevit.field import VectorField
from odevit.model.configuration_equation import make_field
from odevit.model.configuration_student import OdeStudentConfig
from odevit.model.embedding import stretched
from odevit.solver import Solution, Way
from odevit.tokens import Logits, TokenLayout, Tokens


class OdeEncoder(nn.Module):
    """x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r].

    P and Q are there when the student's width is not the teacher's, the positions p and the registers r when the
    configuration asks for them. Nothing outside sees the registers: they are appended on the way in and dropped on the
    way out.

    Args:
        config: a resolved configuration: no None that stands for the teacher's value.
        width: of the teacher's tokens.
        layout: where the patches stand among the tokens; needed for positions only.
    """

    def __init__(self, config: OdeStudentConfig, width: int, layout: TokenLayout | None = None) -> None:
        super().__init__()
        dim = int(config.hidden_size or width)
        self.depth: Depth = DEPTHS[config.depth](lambda: make_field(config), config.way)
        self.in_proj: nn.Linear | None = None
        self.out_proj: nn.Linear | None = None
        if dim != width:
            self.in_proj, self.out_proj = nn.Linear(width, dim), nn.Linear(dim, width)
            _initialise_passage(self.in_proj, self.out_proj)
        self.layout = layout
        self.positions: nn.Parameter | None = None
        if config.positions:
            if layout is None:
                raise ValueError("positions=True needs to know where the patches stand; pass the layout of the tokens")
            self.positions = nn.Parameter(torch.empty(1, layout.num_patches, dim))
            nn.init.trunc_normal_(self.positions, std=0.02)
        self.registers: nn.Parameter | None = None
        if config.registers:
            self.registers = nn.Parameter(torch.empty(1, config.registers, dim))
            nn.init.trunc_normal_(self.registers, std=0.02)

    @property
    def field(self) -> VectorField:
        """f."""
        field = self.depth.field
        assert isinstance(field, VectorField)
        return field

    def forward(
        self,
        x0: Tokens,
        way: Way | None = None,
        *,
        depth: str | None = None,
        read: Callable[[Tokens], Logits] | None = None,
        **options: Any,
    ) -> Solution:
        """The trajectory that starts at the embedded image `x0`, in the teacher's width and with the teacher's tokens.

        Attention maps that are asked for are those of the equation: the student's registers are their last rows and
        columns. `depth` may be "equilibrium"; `read` gets states as they leave; `options` are those of a `Depth`.
        """
        meaning = self.depth if depth is None else self.depth.seen_as(depth)
        inner = None if read is None else lambda z: read(self.leave(z))
        solution = meaning(self.enter(x0), way, read=inner, **options)
        return replace(
            solution,
            state=self.leave(solution.state).to(x0.dtype),
            states=tuple(self.leave(state).to(x0.dtype) for state in solution.states),
        )

    def enter(self, x: Tokens) -> Tokens:
        """z = [P x + p; r]."""
        # The frozen parts may be in half precision; the field is trained in its own.
        x = x.to(next(self.depth.field.parameters()).dtype)
        if self.in_proj is not None:
            x = self.in_proj(x)
        if self.positions is not None:
            x = x + self._positions(x.shape[1])
        return x if self.registers is None else torch.cat([x, self.registers.expand(len(x), -1, -1)], dim=1)

    def leave(self, z: Tokens) -> Tokens:
        """x = Q z, without the registers."""
        if self.registers is not None:
            z = z[:, : z.shape[1] - self.registers.shape[1]]
        return z if self.out_proj is None else self.out_proj(z)

    def _positions(self, tokens: int) -> Tensor:
        """p for this many tokens: nothing for CLS and registers, interpolated for another number of patches."""
        assert self.positions is not None
        assert self.layout is not None
        own = self.layout
        before, after = own.patches.start, len(own) - own.patches.stop
        positions: Tensor = self.positions
        count = tokens - before - after
        if count != own.num_patches:
            side = math.isqrt(max(0, count))
            if side * side != count or count == 0:
                raise ValueError(
                    f"there are {count} patches, and the student's positions were learned on a grid of "
                    f"{own.grid[0]}x{own.grid[1]}; expected that grid or a square one: resize the images"
                )
            positions = stretched(positions, own.grid, (side, side))
        return F.pad(positions, (0, 0, before, after))


def _initialise_passage(into: nn.Linear, out: nn.Linear) -> None:
    """P with orthonormal rows or columns, Q = P^T: a wider student begins with Q P = 1, a narrower one loses least."""
    nn.init.orthogonal_(into.weight)
    with torch.no_grad():
        out.weight.copy_(into.weight.T)
    nn.init.zeros_(into.bias)
    nn.init.zeros_(out.bias)
