"""v = alpha * mask * f(n(x)): one component of a field, from the raw state to a velocity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from odevit.field.attention import Attention
from odevit.field.dynamics import Component, Observer
from odevit.field.mlp import Mlp
from odevit.field.norm import NORMS, TimeModulation
from odevit.tokens import Tokens


class Branch(nn.Module):
    """v = alpha * mask * f(n(x)), f attention or an MLP, with an optional time modulation of n(x).

    `dropout` is the probability of the mask inside f, `drop_path` that a sample's trajectory does without this
    component; the other arguments are those of `VectorField`.
    """

    def __init__(
        self,
        dim: int,
        body: Attention | Mlp,
        norm: str,
        *,
        residual_scale: float | None,
        time_conditioned: bool,
        dropout: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm = NORMS[norm](dim)
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
        gate = draw_mask(self.dropout, self.body.gate_shape(x0), x0)
        path_gate = draw_mask(self.drop_path, (len(x0), 1, 1), x0)
        return lambda x, t, observer: self(x, t, observer, gate, path_gate)


def draw_mask(probability: float, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """A mask of 0 and 1/(1 - p), or None when nothing is dropped."""
    if probability == 0.0:
        return None
    keep = torch.rand(shape, device=like.device) >= probability
    return keep.to(like.dtype) / (1.0 - probability)
