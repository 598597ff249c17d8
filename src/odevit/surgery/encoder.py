"""x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r]: one equation in the place of a list of blocks.

The model around it is somebody else's and is called as it always was, so the way to integrate cannot be handed through
its arguments. It waits in a variable of the calling thread instead: nothing in the model is exchanged for a call, and
threads that call one student with different ways do not meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.base import DEFAULT, Depth, Request
from odevit.core.builder import make_depth
from odevit.core.embedding import stretched
from odevit.core.field import VectorField
from odevit.core.solution import Solution
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.time_varying.knots import KnottedField
from odevit.tokens import TokenLayout, Tokens, with_registers

BlockOverride = Callable[[Tokens], Solution]
"""What is done with the tokens that arrive, in place of integrating them as configured."""


class OdeEncoder(nn.Module):
    """x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r].

    P and Q are there when the student's width is not the teacher's, the positions p and the registers r when the
    configuration asks for them. Nothing outside sees the registers: they are appended on the way in and dropped on the
    way out.

    Args:
        config: a resolved configuration: no None that stands for the teacher's value.
        width: of the teacher's tokens.
        layout: where the patches stand among the tokens; needed for positions only, learned or rotary.
    """

    def __init__(self, config: OdeStudentConfig, width: int, layout: TokenLayout | None = None) -> None:
        super().__init__()
        dim = int(config.hidden_size or width)
        inner = None if layout is None else with_registers(layout, config.registers)
        self.depth: Depth = make_depth(config, inner)
        self.in_proj: nn.Linear | None = None
        self.out_proj: nn.Linear | None = None
        if dim != width:
            self.in_proj, self.out_proj = nn.Linear(width, dim), nn.Linear(dim, width)
            # P is orthogonal and Q = P^T: a wider student begins with Q P = 1, a narrower one loses least.
            nn.init.orthogonal_(self.in_proj.weight)
            with torch.no_grad():
                self.out_proj.weight.copy_(self.in_proj.weight.T)
            nn.init.zeros_(self.in_proj.bias)
            nn.init.zeros_(self.out_proj.bias)
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
    def field(self) -> VectorField | KnottedField:
        """f, shared by the whole way."""
        return cast("VectorField | KnottedField", self.depth.field)

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        """The trajectory that starts at the embedded image `x0`, in the teacher's width and with the teacher's tokens.

        Attention maps that are asked for are those of the equation: the student's registers are their last rows and
        columns. The readout of the request gets states in the teacher's width.
        """
        readout = request.readout
        inner = None if readout is None else lambda z: readout(self.decode_tokens(z))
        depth = self.depth.as_depth(request.depth)
        solution = depth(self.encode_tokens(x0), replace(request, readout=inner))
        return replace(
            solution,
            state=self.decode_tokens(solution.state).to(x0.dtype),
            states=tuple(self.decode_tokens(state).to(x0.dtype) for state in solution.states),
        )

    def encode_tokens(self, x: Tokens) -> Tokens:
        """z = [P x + p; r]."""
        # The frozen parts may be in half precision; the field is trained in its own.
        x = x.to(next(self.depth.field.parameters()).dtype)
        if self.in_proj is not None:
            x = self.in_proj(x)
        if self.positions is not None:
            x = x + self._padded_positions(self.positions, x.shape[1])
        return x if self.registers is None else torch.cat([x, self.registers.expand(len(x), -1, -1)], dim=1)

    def decode_tokens(self, z: Tokens) -> Tokens:
        """x = Q z, without the registers."""
        if self.registers is not None:
            z = z[:, : z.shape[1] - self.registers.shape[1]]
        return z if self.out_proj is None else self.out_proj(z)

    def _padded_positions(self, positions: Tensor, tokens: int) -> Tensor:
        """p for this many tokens: nothing for CLS and registers, interpolated for another number of patches."""
        own = self.layout
        assert own is not None
        now = own.fitted(tokens)
        if now.grid != own.grid:
            positions = stretched(positions, own.grid, now.grid)
        return F.pad(positions, (0, 0, now.patches.start, tokens - now.patches.stop))


class _Crossings(threading.local):
    encoder: OdeEncoder | None = None
    crossing: BlockOverride | None = None


_CROSSINGS = _Crossings()


@contextmanager
def override_blocks(encoder: OdeEncoder, crossing: BlockOverride) -> Iterator[None]:
    """Within this context, and this thread, tokens that arrive at the encoder's bridge go through `crossing`."""
    before = _CROSSINGS.encoder, _CROSSINGS.crossing
    _CROSSINGS.encoder, _CROSSINGS.crossing = encoder, crossing
    try:
        yield
    finally:
        _CROSSINGS.encoder, _CROSSINGS.crossing = before


def _crossing_of(encoder: OdeEncoder) -> BlockOverride | None:
    return _CROSSINGS.crossing if _CROSSINGS.encoder is encoder else None


class BlockBridge(nn.Module):
    """Called like any of the blocks it replaces.

    Whatever they are given beside the tokens (masks, rotary embeddings, flags) is accepted and has no meaning here.
    """

    def __init__(self, encoder: OdeEncoder, as_tuple: bool) -> None:
        super().__init__()
        # In a tuple, so that it is no part of this module: the student owns it.
        self.encoder = (encoder,)
        self.as_tuple = as_tuple

    def forward(self, hidden_states: Tokens, *_: Any, **__: Any) -> Tokens | tuple[Tokens]:
        (encoder,) = self.encoder
        crossing = _crossing_of(encoder)
        state = (encoder(hidden_states) if crossing is None else crossing(hidden_states)).state
        return (state,) if self.as_tuple else state


class DepthBridge(Depth):
    """Called like the depth of our own stacked model."""

    has_trajectory = True

    def __init__(self, encoder: OdeEncoder) -> None:
        super().__init__(lambda: encoder.depth.field, encoder.depth.solver_config)
        self.encoder = (encoder,)

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        (encoder,) = self.encoder
        crossing = _crossing_of(encoder)
        return encoder(x0, request) if crossing is None else crossing(x0)

    def describe(self) -> str:
        return self.encoder[0].depth.describe()
