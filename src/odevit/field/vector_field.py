"""dx/dt = G(x) + F(x) - leak (x - x0): attention and MLP as one shared vector field (eq. 3)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from odevit.field.attention import ATTENTIONS, Attention
from odevit.field.dynamics import Component, Dynamics, Field, Observer
from odevit.field.mlp import Mlp
from odevit.field.norm import NORMS, TimeModulation
from odevit.tokens import Tokens


class VectorField(Field):
    """dx/dt = G(n_1(x)) + F(n_2(x)) - leak (x - x0).

    G is attention, F an MLP, n_1 and n_2 norms. The weights do not depend on t: the field is autonomous unless
    `time_conditioned`. With leak > 0 and a norm that bounds the forcing, every trajectory stays within
    |forcing| / leak of its image x0 and can come to rest.

    Args:
        dim: width of the tokens.
        heads: number of attention heads; divides `dim`.
        mlp_ratio: hidden width of F over `dim`.
        attention: name of G, see `ATTENTIONS`.
        norm: name of the norms, see `NORMS`.
        leak: pull towards the start of the trajectory.
        bias: whether projections have one.
        residual_scale: start value of a learned per-channel factor on each component; None leaves it out.
        time_conditioned: whether the norms are scaled and shifted by functions of t.
        attention_dropout, dropout, drop_path: probabilities; each draws one mask per trajectory.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_ratio: float = 4.0,
        *,
        attention: str = "dot",
        norm: str = "layer",
        leak: float = 0.0,
        bias: bool = False,
        residual_scale: float | None = None,
        time_conditioned: bool = False,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.leak = leak

        shared: Any = {"residual_scale": residual_scale, "time_conditioned": time_conditioned, "drop_path": drop_path}
        mixing = Branch(dim, ATTENTIONS[attention](dim, heads, bias), norm, dropout=attention_dropout, **shared)
        within = Branch(dim, Mlp(dim, mlp_ratio, bias), norm, dropout=dropout, **shared)
        self.components = nn.ModuleDict({"attention": mixing, "mlp": within})

    @property
    def attention(self) -> Attention:
        """G, without its norm."""
        return cast(Attention, cast(Branch, self.components["attention"]).body)

    def dynamics(self, x0: Tokens) -> Dynamics:
        components = {name: cast(Branch, branch).component(x0) for name, branch in self.components.items()}
        return Dynamics(components, anchor=x0, leak=self.leak)


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
