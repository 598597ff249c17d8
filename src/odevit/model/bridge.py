"""h -> equation -> h': what stands where the blocks of an operated ViT stood.

The model around it is somebody else's and is called as it always was, so the way to integrate cannot be handed through
its arguments. It waits in a variable of the calling thread instead: nothing in the model is exchanged for a call, and
threads that call one student with different ways do not meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from odevit.depth import Depth
from odevit.model.encoder import OdeEncoder
from odevit.solver import Solution, Way
from odevit.tokens import Tokens

Crossing = Callable[[Tokens], Solution]
"""What is done with the tokens that arrive, in place of integrating them as configured."""


class _Crossings(threading.local):
    encoder: OdeEncoder | None = None
    crossing: Crossing | None = None


_CROSSINGS = _Crossings()


@contextmanager
def crossed_by(encoder: OdeEncoder, crossing: Crossing) -> Iterator[None]:
    """Within this context, and this thread, tokens that arrive at the encoder's bridge go through `crossing`."""
    before = _CROSSINGS.encoder, _CROSSINGS.crossing
    _CROSSINGS.encoder, _CROSSINGS.crossing = encoder, crossing
    try:
        yield
    finally:
        _CROSSINGS.encoder, _CROSSINGS.crossing = before


def _crossing_of(encoder: OdeEncoder) -> Crossing | None:
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
        cross = _crossing_of(encoder) or encoder
        state = cross(hidden_states).state
        return (state,) if self.as_tuple else state


class DepthBridge(Depth):
    """Called like the depth of our own stacked model."""

    has_trajectory = True

    def __init__(self, encoder: OdeEncoder) -> None:
        super().__init__(lambda: encoder.depth.field, encoder.depth.way)
        self.encoder = (encoder,)

    def forward(self, x0: Tokens, way: Way | None = None, **options: Any) -> Solution:
        (encoder,) = self.encoder
        crossing = _crossing_of(encoder)
        return encoder(x0, way, **options) if crossing is None else crossing(x0)

    def describe(self) -> str:
        return self.encoder[0].depth.describe()


def make_bridge(encoder: OdeEncoder, own: bool, as_tuple: bool) -> nn.Module:
    """The module for the place of the blocks."""
    # A Sequential answers to a loop over its members as well as to a call, so it serves for both kinds of list.
    return DepthBridge(encoder) if own else nn.Sequential(BlockBridge(encoder, as_tuple))
