"""configuration -> field -> depth."""

from __future__ import annotations

from typing import Any

from torch import nn

from odevit.core.base import DEPTHS, FIELDS, HOOKS, Depth, Field, FieldBuilder
from odevit.core.field import VectorField
from odevit.tokens import TokenLayout


def make_depth(config: Any, layout: TokenLayout | None = None) -> Depth:
    """The depth that a configuration describes, with its field or fields."""
    make = DEPTHS[config.depth]
    depth = make(lambda: make_field(config, layout), config.solver_config, **(config.depth_options or {}))
    if layout is not None:
        depth.set_layout(layout)
    return depth


def make_field(config: Any, layout: TokenLayout | None = None) -> Field:
    """The field that a configuration describes. Only rotary positions need the layout."""
    return next(kind for kind in FIELDS.values() if kind.matches(config)).make(config, layout)


@FIELDS.register("autonomous")
class AutonomousBuilder(FieldBuilder):
    """One set of weights for the whole trajectory."""

    @staticmethod
    def matches(config: Any) -> bool:
        return config.weights_over_time == "knots" and config.knots == 1 and config.vector_knots is None

    @staticmethod
    def make(config: Any, layout: TokenLayout | None) -> Field:
        return make_vector_field(config, layout)


def make_vector_field(config: Any, layout: TokenLayout | None = None) -> VectorField:
    """The field of one set of weights: the whole field, or one knot of it.

    The configuration of an old student has None for settings that did not exist then.
    """
    if config.rope_theta and layout is None:
        raise ValueError("rotary positions depend on where the patches are; pass the layout of the tokens")
    field = VectorField(
        config.hidden_size,
        config.num_attention_heads,
        config.mlp_ratio,
        attention=config.attention,
        attention_options=config.attention_options,
        norm=config.norm,
        # A stack of different layers has no equation with a leak.
        leak=config.leak if DEPTHS[config.depth].shares_field else 0.0,
        fade=HOOKS["fade"](float(config.horizon), config.fade) if config.fade else None,
        bias=config.bias,
        activation=config.activation or "gelu",
        gated=bool(config.gated),
        qk_norm=bool(config.qk_norm),
        rotary=HOOKS["rotary"](config.rope_theta, layout) if config.rope_theta else None,
        residual_scale=config.residual_scale,
        time_conditioned=config.time_conditioned,
        attention_dropout=config.attention_dropout,
        dropout=config.hidden_dropout,
        output_dropout=config.output_dropout,
        drop_path=config.drop_path,
    )
    if config.norm_eps is not None:
        for module in field.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.eps = config.norm_eps
    return field
