"""dx/dt = G(x) + F(x) - leak (x - x0): attention and MLP as one shared vector field (eq. 3)."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from odevit.field.attention import ATTENTIONS, Attention
from odevit.field.branch import Branch
from odevit.field.dynamics import Dynamics, Field
from odevit.field.mlp import Mlp
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
