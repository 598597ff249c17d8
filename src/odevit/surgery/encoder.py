"""x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r]: one equation in place of a list of blocks.

The model around it is of another library, so solver, steps and horizon cannot be arguments of its `forward`. They are
kept in a variable of the calling thread instead: a call changes nothing in the model, and threads can call one student
with different solver settings.
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
from odevit.core.embedding import stretched
from odevit.core.field import VectorField
from odevit.core.ode_depth import make_depth
from odevit.core.solution import Solution, Stats
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.time_varying.knots import KnottedField
from odevit.tokens import TokenLayout, Tokens, with_registers

BlockOverride = Callable[[Tokens], Solution]
"""Computes the trajectory of the tokens that arrive, in place of the encoder."""


class OdeEncoder(nn.Module):
    """x(T) = Q z(T), dz/dt = f(z), z(0) = [P x(0) + p; r].

    P and Q exist when the student's width is not the teacher's, the positions p and the registers r when the
    configuration has them. The registers are appended on the way in and dropped on the way out.

    Args:
        config: a resolved configuration, without a None that stands for the teacher's value.
        width: of the teacher's tokens.
        layout: where the patches are among the tokens; only learned or rotary positions need it.
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
            # P is orthogonal and Q = P^T: a wider student starts with Q P = 1, a narrower one loses least.
            nn.init.orthogonal_(self.in_proj.weight)
            with torch.no_grad():
                self.out_proj.weight.copy_(self.in_proj.weight.T)
            nn.init.zeros_(self.in_proj.bias)
            nn.init.zeros_(self.out_proj.bias)
        self.layout = layout
        self.positions: nn.Parameter | None = None
        if config.positions:
            if layout is None:
                raise ValueError("positions=True needs the layout of the tokens; pass layout=")
            self.positions = nn.Parameter(torch.empty(1, layout.num_patches, dim))
            nn.init.trunc_normal_(self.positions, std=0.02)
        self.registers: nn.Parameter | None = None
        if config.registers:
            self.registers = nn.Parameter(torch.empty(1, config.registers, dim))
            nn.init.trunc_normal_(self.registers, std=0.02)

    @property
    def field(self) -> VectorField | KnottedField:
        """f, the same field at every step."""
        return cast("VectorField | KnottedField", self.depth.field)

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        """The trajectory of the embedded image `x0`, in the teacher's tokens.

        Attention maps are those of the field: the student's registers are their last rows and columns.
        """
        return self.decode_solution(self.depth(self.encode_tokens(x0), request), x0.dtype)

    def decode_solution(self, solution: Solution, dtype: torch.dtype) -> Solution:
        """The same trajectory in the teacher's tokens."""
        state, *states = (self.decode_tokens(state).to(dtype) for state in (solution.state, *solution.states))
        return replace(solution, state=state, states=tuple(states))

    def encode_tokens(self, x: Tokens) -> Tokens:
        """z = [P x + p; r]."""
        # The frozen parts may be in half precision, the field is not.
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
        assert self.layout is not None
        layout = self.layout.fitted(tokens)
        if layout.grid != self.layout.grid:
            positions = stretched(positions, self.layout.grid, layout.grid)
        return F.pad(positions, (0, 0, layout.patches.start, tokens - layout.patches.stop))


class _Active(threading.local):
    encoder: OdeEncoder | None = None
    override: BlockOverride | None = None


_ACTIVE = _Active()


@contextmanager
def override_blocks(encoder: OdeEncoder, override: BlockOverride) -> Iterator[None]:
    """A context in which, in this thread, the model around `encoder` calls `override` in place of its blocks."""
    before = _ACTIVE.encoder, _ACTIVE.override
    _ACTIVE.encoder, _ACTIVE.override = encoder, override
    try:
        yield
    finally:
        _ACTIVE.encoder, _ACTIVE.override = before


def _override_of(encoder: OdeEncoder) -> BlockOverride | None:
    return _ACTIVE.override if _ACTIVE.encoder is encoder else None


class BlockBridge(nn.Module):
    """Is called like any of the blocks that the equation replaces.

    Their other arguments (masks, rotary embeddings, flags) are accepted and ignored.
    """

    def __init__(self, encoder: OdeEncoder, as_tuple: bool) -> None:
        super().__init__()
        # In a tuple, so that it is not registered as a submodule here: it is the student's.
        self.encoder = (encoder,)
        self.as_tuple = as_tuple

    def forward(self, hidden_states: Tokens, *_: Any, **__: Any) -> Tokens | tuple[Tokens]:
        encoder = self.encoder[0]
        state = (_override_of(encoder) or encoder)(hidden_states).state
        return (state,) if self.as_tuple else state


class DepthBridge(Depth):
    """Is called like the depth of our own stacked model."""

    has_trajectory = True

    def __init__(self, encoder: OdeEncoder) -> None:
        super().__init__(lambda: encoder.depth.field, encoder.depth.solver_config)
        self.encoder = (encoder,)

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        encoder = self.encoder[0]
        override = _override_of(encoder)
        return encoder(x0, request) if override is None else override(x0)

    def describe(self) -> str:
        return self.encoder[0].depth.describe()


class Unregistered:
    """Holds a model that is no submodule: not trained, moved, saved or copied."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> Unregistered:
        return self


def constant_solution(state: Tokens) -> Solution:
    """The trajectory that stays at a state."""
    return Solution(state=state, time=0.0, stats=Stats(nfe=0, steps=0))
