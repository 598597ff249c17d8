"""v = alpha * mask * f(n(x)): one component of a field, from the raw state to a velocity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from odevit.field.dynamics import Component, Observer
from odevit.field.norm import NORMS
from odevit.field.time import TimeModulation
from odevit.tokens import Tokens


class Body(Protocol):
    """What stands inside a branch: attention or an MLP."""

    def gate_shape(self, x: Tokens) -> tuple[int, ...]: ...


class Branch(nn.Module):
    """v = alpha * mask * f(n(x)), with an optional time modulation of n(x).

    Args:
        dim: width of the tokens.
        body: f, an attention or an MLP.
        norm: name of n.
        residual_scale: start value of the learned per-channel factor alpha; None leaves it out.
        time_conditioned: whether n(x) is scaled and shifted by functions of t.
        dropout: probability of the mask inside f (hidden units or attention weights).
        drop_path: probability that a sample's trajectory does without this component.
    """

    def __init__(
        self,
        dim: int,
        body: nn.Module,
        norm: str,
        *,
        residual_scale: float | None = None,
        time_conditioned: bool = False,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        make_norm: Callable[[int], nn.Module] = NORMS[norm]
        self.norm = make_norm(dim)
        self.body = body
        self.time = TimeModulation(dim) if time_conditioned else None
        self.residual_scale = None if residual_scale is None else nn.Parameter(torch.full((dim,), residual_scale))
        self.dropout = dropout
        self.drop_path = drop_path

    def forward(
        self,
        x: Tokens,
        t: float,
        observer: Observer | None = None,
        gate: Tensor | None = None,
        path_gate: Tensor | None = None,
    ) -> Tokens:
        y = self.norm(x)
        if self.time is not None:
            y = self.time(y, t)
        velocity = self.body(y, gate, observer)
        if self.residual_scale is not None:
            velocity = self.residual_scale * velocity
        if path_gate is not None:
            velocity = velocity * path_gate
        return velocity

    def component(self, x0: Tokens) -> Component:
        """This branch along the trajectory that starts at `x0`: its masks are drawn now and stay.

        Redrawn at every evaluation they would make the field another function at every stage of a step: there would
        be no equation left to solve.
        """
        if not self.training or self.dropout == self.drop_path == 0.0:
            return self
        body: Body = self.body  # type: ignore[assignment]
        gate = draw_mask(self.dropout, body.gate_shape(x0), x0)
        path_gate = draw_path_mask(self.drop_path, x0)
        return lambda x, t, observer: self(x, t, observer, gate, path_gate)


def draw_mask(probability: float, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """A mask of 0 and 1/(1 - p), or None when nothing is dropped."""
    if probability == 0.0:
        return None
    keep = torch.rand(shape, device=like.device) >= probability
    return keep.to(like.dtype) / (1.0 - probability)


def draw_path_mask(probability: float, like: Tensor) -> Tensor | None:
    """One number per sample: the whole component is dropped for the whole trajectory."""
    return draw_mask(probability, (like.shape[0],) + (1,) * (like.ndim - 1), like)
