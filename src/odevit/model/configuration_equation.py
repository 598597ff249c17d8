"""dx/dt = G(x) + F(x) - leak (x - x0), T in N steps: what a configuration says of an equation."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig

from odevit.depth import DEPTHS
from odevit.errors import PROBABILITY, Expected, broken, number, unknown_name, whole
from odevit.field import ATTENTIONS, NORMS, VectorField
from odevit.registry import Registry
from odevit.solver import SOLVERS, Way
from odevit.version import __version__


class EquationConfig(PreTrainedConfig):
    """What every model of continuous depth is configured by, whether made from scratch or put in a ViT's place.

    Args:
        num_attention_heads: H; divides `hidden_size`.
        mlp_ratio: hidden width of the MLP over `hidden_size`.
        attention: `dot`, `l2`, `cosine` or `hopfield`.
        norm: `center`, `layer` or `rms`, inside the field.
        norm_eps: epsilon of those norms; matters where tokens are small.
        leak: pull towards the embedded image; 0 is the paper's equation.
        bias: whether the field's projections have one.
        residual_scale: start value of a learned per-channel factor on each component, or None.
        time_conditioned: whether the field knows the time.
        attention_dropout, hidden_dropout, drop_path: probabilities, one mask per trajectory.
        depth: what depth means, see `DEPTHS`.
        solver: how the model is integrated unless told otherwise.
        steps: N, the number of steps; N means N.
        horizon: T, the length of the trajectory; a step is T/N long.
    """

    num_attention_heads: int | None = 4
    mlp_ratio: float = 1.0
    attention: str = "dot"
    norm: str = "layer"
    norm_eps: float | None = None
    leak: float = 1.0
    bias: bool = False
    residual_scale: float | None = None
    time_conditioned: bool = False
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    drop_path: float = 0.0
    depth: str = "ode"
    solver: str = "exponential_euler"
    steps: int = 12
    horizon: float | None = 6.0
    odevit_version: str = __version__

    rules: ClassVar[dict[str, Expected]] = {
        "steps": whole(1),
        "mlp_ratio": number(above=0),
        "leak": number(least=0),
        "residual_scale": number(optional=True),
        "norm_eps": number(above=0, optional=True),
        "attention_dropout": PROBABILITY,
        "hidden_dropout": PROBABILITY,
        "drop_path": PROBABILITY,
    }
    """What the numbers should be; a subclass adds its own."""

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names of what this library adds to Hugging Face's configuration, for users to set."""
        classes = [kind for kind in cls.__mro__ if issubclass(kind, EquationConfig)]
        names = [name for kind in classes for name in kind.__annotations__]
        return [name for name in dict.fromkeys(names) if name not in ("odevit_version", "rules")]

    @property
    def way(self) -> Way:
        """How the model integrates on its own."""
        return Way(self.solver, self.steps, float(self.horizon or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, with the version of the library that writes it."""
        return {**super().to_dict(), "odevit_version": __version__}

    def equation_problems(self) -> list[str]:
        """All that is wrong with the equation, as sentences."""
        named: list[tuple[Registry[Any], str]] = [
            (ATTENTIONS, self.attention),
            (NORMS, self.norm),
            (DEPTHS, self.depth),
            (SOLVERS, self.solver),
        ]
        problems = [problem for registry, name in named if (problem := registry.problem(name))]
        return problems + broken(self, self.rules)

    def head_problems(self, width: int, heads: int) -> list[str]:
        """Whether the heads divide the width."""
        if width % heads == 0:
            return []
        fitting = [n for n in range(1, 33) if width % n == 0]
        return [f"num_attention_heads={heads} does not divide hidden_size={width}; choose one of {fitting}"]


def one_of(kind: str, name: str, known: tuple[str, ...]) -> list[str]:
    """A sentence when a name is not among the known ones."""
    return [] if name in known else [unknown_name(kind, name, known)]


def make_field(config: Any) -> VectorField:
    """The vector field that a configuration describes."""
    field = VectorField(
        config.hidden_size,
        config.num_attention_heads,
        config.mlp_ratio,
        attention=config.attention,
        norm=config.norm,
        # A stack of different layers has no equation, and nothing to be pulled back to.
        leak=config.leak if DEPTHS[config.depth].shares_field else 0.0,
        bias=config.bias,
        residual_scale=config.residual_scale,
        time_conditioned=config.time_conditioned,
        attention_dropout=config.attention_dropout,
        dropout=config.hidden_dropout,
        drop_path=config.drop_path,
    )
    if config.norm_eps is not None:
        for module in field.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.eps = config.norm_eps
    return field
