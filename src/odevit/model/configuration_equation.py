"""dx/dt = G(x) + F(x) - leak (x - x0), T in N steps: what a configuration says of an equation."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig

from odevit.depth import DEPTHS
from odevit.errors import PROBABILITY, ConfigError, Expected, broken, number, unknown_name, whole
from odevit.field import ATTENTIONS, NORMS, VectorField
from odevit.solver import SOLVERS, Way
from odevit.version import __version__


class EquationConfig(PreTrainedConfig):
    """What every model of continuous depth is configured by, whether made from scratch or put in a ViT's place.

    Args:
        hidden_size, num_attention_heads: D and H, which divides D.
        mlp_ratio, attention, norm, leak, bias, residual_scale, time_conditioned: as for `VectorField`.
        norm_eps: epsilon of the norms in the field; matters where tokens are small.
        attention_dropout, hidden_dropout, drop_path: probabilities, one mask per trajectory.
        depth: what depth means, see `DEPTHS`.
        solver, steps, horizon: how the model is integrated unless told otherwise, see `Way`.
    """

    keys_to_ignore_at_inference = ("trajectory", "stats", "hidden_states", "attentions")

    hidden_size: int | None = None
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

    choices: ClassVar[dict[str, Collection[str]]] = {
        "attention": ATTENTIONS,
        "norm": NORMS,
        "depth": DEPTHS,
        "solver": SOLVERS,
    }
    """The names that are known; a subclass adds its own."""
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

    def __post_init__(self, **kwargs: Any) -> None:
        misspelt = [
            f"unknown key {key!r}. Did you mean {near[0]!r}?"
            for key in kwargs
            if (near := get_close_matches(key, self.own_fields(), n=1, cutoff=0.75))
        ]
        super().__post_init__(**kwargs)
        problems = misspelt + self.problems()
        if problems:
            raise ConfigError(type(self).__name__, problems)

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names of what this library adds to Hugging Face's configuration, for users to set."""
        classes = [kind for kind in cls.__mro__ if issubclass(kind, EquationConfig)]
        names = dict.fromkeys(name for kind in classes for name in kind.__annotations__)
        return [name for name in names if name not in ("odevit_version", "choices", "rules")]

    @property
    def way(self) -> Way:
        """How the model integrates on its own."""
        return Way(self.solver, self.steps, float(self.horizon or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, with the version of the library that writes it."""
        return {**super().to_dict(), "odevit_version": __version__}

    def problems(self) -> list[str]:
        """All that is wrong, as sentences."""
        unknown = [
            unknown_name(name, value, known)
            for name, known in self.choices.items()
            if (value := getattr(self, name)) not in known
        ]
        return unknown + broken(self, self.rules)

    def head_problems(self) -> list[str]:
        """Whether the heads divide the width, once both are numbers."""
        width, heads = self.hidden_size, self.num_attention_heads
        if width is None or heads is None or width % heads == 0:
            return []
        fitting = [n for n in range(1, 33) if width % n == 0]
        return [f"num_attention_heads={heads} does not divide hidden_size={width}; choose one of {fitting}"]


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
