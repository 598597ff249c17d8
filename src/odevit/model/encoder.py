"""x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r]: one equation in the place of a list of blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.depth import Integration, OdeDepth
from odevit.depth.base import AS_CONFIGURED
from odevit.distill.configuration import OdeEncoderConfig
from odevit.field import VectorField
from odevit.model.layout import TokenLayout
from odevit.shapes import Tokens
from odevit.solver import Solution


class OdeEncoder(nn.Module):
    """x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r].

    Called like any of the blocks it replaces: whatever they are given beside the tokens (masks, rotary embeddings,
    flags) is accepted and has no meaning here. P and Q are there when the student's width is not the teacher's, the
    positions p and the registers r when the configuration asks for them. Nothing outside sees the registers: they are
    appended on the way in and left behind on the way out.

    Args:
        config: a resolved configuration: no None that stands for the teacher's value.
        width: of the teacher's tokens.
        layout: where the patches stand among the tokens; needed for positions only.
        as_tuple: whether the teacher's blocks answer with a tuple.
    """

    def __init__(
        self, config: OdeEncoderConfig, width: int, layout: TokenLayout | None = None, as_tuple: bool = False
    ) -> None:
        super().__init__()
        dim = int(config.hidden_size or width)
        self.as_tuple = as_tuple
        self.depth = OdeDepth(
            lambda: make_field(config, dim),
            solver=config.solver,
            steps=config.steps,
            horizon=float(config.horizon or 0.0),
        )
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

    def integrate(self, x0: Tokens, how: Integration = AS_CONFIGURED, depth: str | None = None) -> Solution:
        """The trajectory that starts at the embedded image `x0`, in the teacher's width and with the teacher's tokens.

        Attention maps that are asked for are those of the equation: the student's registers are their last rows and
        columns. `depth` may be "equilibrium"; `how.read` gets states as they leave.
        """
        read = how.read
        if read is not None:
            how = replace(how, read=lambda z: read(self.leave(z)))
        chosen = self.depth if depth is None else self.depth.seen_as(depth)
        solution = chosen(self.enter(x0), how)
        return replace(
            solution,
            state=self.leave(solution.state).to(x0.dtype),
            states=tuple(self.leave(state).to(x0.dtype) for state in solution.states),
        )

    def forward(self, hidden_states: Tokens, *_: Any, **__: Any) -> Tokens | tuple[Tokens]:
        state = self.integrate(hidden_states).state
        return (state,) if self.as_tuple else state

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
            grid = positions.unflatten(1, own.grid).permute(0, 3, 1, 2)
            grid = F.interpolate(grid.float(), size=(side, side), mode="bicubic", align_corners=False).to(grid.dtype)
            positions = grid.flatten(2).transpose(1, 2)
        return F.pad(positions, (0, 0, before, after))


def make_field(config: OdeEncoderConfig, dim: int) -> VectorField:
    """The vector field that a resolved configuration describes."""
    field = VectorField(
        dim,
        int(config.num_attention_heads or 1),
        config.mlp_ratio,
        attention=config.attention,
        norm=config.norm,
        leak=config.leak,
        bias=config.bias,
        residual_scale=config.residual_scale,
        time_conditioned=config.time_conditioned,
    )
    for module in field.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and config.norm_eps is not None:
            module.eps = config.norm_eps
    return field


def _initialise_passage(into: nn.Linear, out: nn.Linear) -> None:
    """P with orthonormal rows or columns, Q = P^T: a wider student begins with Q P = 1, a narrower one loses least."""
    nn.init.orthogonal_(into.weight)
    with torch.no_grad():
        out.weight.copy_(into.weight.T)
    nn.init.zeros_(into.bias)
    nn.init.zeros_(out.bias)
