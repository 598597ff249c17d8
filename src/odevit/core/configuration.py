"""dx/dt = G(x) + F(x) - leak (x - x0), T in N steps: the settings of an equation, saved in config.json."""

from __future__ import annotations

import os
from typing import Any

from transformers import PreTrainedConfig

from odevit.core.base import HOOKS, SOLVERS, FixedStepSolver
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, misspelt_keys
from odevit.version import __version__

WIDEST, FINEST = 2**14, 2**14
"""Channels of a token, pixels of a side: more is a typing error that would fill the memory (ViT-22B has 6,144)."""


class OdeConfig(PreTrainedConfig):
    """The equation of a model, whether the model is made from scratch or is a student of a ViT.

    Args:
        hidden_size, num_attention_heads: D and H, which divides D.
        mlp_ratio, attention, norm, leak, bias, activation, gated, qk_norm, residual_scale, time_conditioned: as for
            `VectorField`.
        rope_theta: the base of rotary positions in attention, see `Rotary`; 0 leaves them out.
        norm_eps: epsilon of the norms in the field; matters where tokens are small.
        knots: K, the number of sets of weights that are blended over time; 1 is an autonomous field.
        blend: `linear`, interpolated between knots, or `constant`, K pieces.
        knot_times: the times of the knots, or the beginnings of the pieces, as shares of the horizon; None is evenly.
        rank: makes the knots changes of this rank of one shared weight, with vectors of their own; None is K weights.
        weights_over_time: `knots`, or `network`: a small network computes the weights from the time, see `HyperField`.
        basis: R, how many weights the network mixes; `rank` is theirs.
        vector_knots: how many knots vectors (norms, biases, scales) have of their own; they cost little.
        vector_blend: how these are blended, `linear` or `constant`; None is as `blend` says.
        fade: share of the horizon after T over which the velocity falls to 0; 0 leaves it on.
        attention_dropout, hidden_dropout, output_dropout, drop_path: probabilities, one mask per trajectory, as for
            `VectorField`.
        depth: the kind of depth, see `DEPTHS`.
        depth_options: options of that depth, by name.
        attention_options: options of that kind of attention, by name, such as the `updates` of a Hopfield network.
        solver, steps, horizon, grid: how the model is integrated unless a call says otherwise, see `SolverConfig`.
        tolerance: rtol of an adaptive solver, with atol a tenth of it; None is the solver's own.
        on_failure: what to do when that fails: `raise`, `warn`, or `ignore`, which does not look; None is an error in
            training and a warning in evaluation.
    """

    auto_classes = {}  # type: ignore[var-annotated] # noqa: RUF012 (annotated, it would be a field)
    """The classes that transformers' Auto classes make of such a configuration, by name."""
    # A list: the Trainer adds to it.
    keys_to_ignore_at_inference = ["hidden_states", "attentions", "penalties"]  # noqa: RUF012

    hidden_size: int | None = None
    num_attention_heads: int | None = 4
    mlp_ratio: float | None = 1.0
    attention: str | None = "dot"
    norm: str | None = "layer"
    norm_eps: float | None = None
    leak: float = 1.0
    bias: bool | None = False
    activation: str | None = "gelu"
    gated: bool | None = False
    qk_norm: bool | None = False
    rope_theta: float | None = 0.0
    residual_scale: float | None = None
    time_conditioned: bool | str = False
    knots: int = 1
    blend: str = "linear"
    knot_times: list[float] | tuple[float, ...] | None = None
    rank: int | None = None
    vector_knots: int | None = None
    vector_blend: str | None = None
    weights_over_time: str = "knots"
    basis: int = 4
    fade: float = 0.0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    drop_path: float = 0.0
    depth: str = "ode"
    depth_options: dict[str, Any] | None = None
    attention_options: dict[str, Any] | None = None
    solver: str = "exponential_euler"
    steps: int = 12
    horizon: float | None = 6.0
    tolerance: float | None = None
    grid: str | list[float] | tuple[float, ...] = "uniform"
    on_failure: str | None = None
    odevit_version: str = __version__

    def __post_init__(self, **kwargs: Any) -> None:
        misspelt = misspelt_keys(kwargs, self.own_fields())
        super().__post_init__(**kwargs)
        if problems := misspelt + self.problems():
            raise ConfigError(type(self).__name__, problems)

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names of the settings that this library adds to Hugging Face's configuration."""
        classes = [kind for kind in cls.__mro__ if issubclass(kind, OdeConfig)]
        names = dict.fromkeys(name for kind in classes for name in kind.__annotations__)
        return [name for name in names if name not in ("odevit_version", "choices", "rules", "inherited")]

    @property
    def solver_config(self) -> SolverConfig:
        """How the model integrates unless a call says otherwise."""
        grid = self.grid if isinstance(self.grid, str) else tuple(self.grid)
        solver: Any = self.solver
        if self.tolerance is not None and not issubclass(SOLVERS[self.solver], FixedStepSolver):
            solver = SOLVERS[self.solver](rtol=self.tolerance, atol=self.tolerance / 10)  # type: ignore[call-arg]
        return SolverConfig(solver, self.steps, float(self.horizon or 0.0), grid)

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, with the version of the library that writes it, and where its classes are."""
        auto_map = {auto: f"odevit_classes.{name}" for auto, name in self.auto_classes.items()}
        return {**super().to_dict(), "odevit_version": __version__, "auto_map": auto_map}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; with another depth, the options of the old one are dropped."""
        if kwargs.get("depth") not in (None, config_dict.get("depth")):
            config_dict = {**config_dict, "depth_options": None}
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write config.json, and the file through which transformers finds this library."""
        super().save_pretrained(save_directory, *args, **kwargs)
        HOOKS["write_remote_code"](save_directory)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: transformers would copy the source of this class into the folder, and `auto_map` has it already."""

    def problems(self) -> list[str]:
        """All that is wrong with the settings, as sentences; `odevit.hf.config_rules` has the rules."""
        return HOOKS["config_problems"](self)
