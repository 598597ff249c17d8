"""What a configuration describes: knots -> field -> depth."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from odevit.attention.rotary import Rotary
from odevit.core.depth import DEPTHS, Depth
from odevit.core.dynamics import Fade
from odevit.core.field import VectorField
from odevit.time_varying.hyper import HyperField
from odevit.time_varying.knot_schedule import KnotSchedule
from odevit.time_varying.knots import KnottedField
from odevit.time_varying.low_rank import LowRankChange
from odevit.tokens import TokenLayout


def other_knots(keys: Iterable[str], config: Any) -> str | None:
    """The sentence for weights that are missing, or of no use, because they are those of a field with other knots."""
    if not any(re.search(r"\bfield\.(knots|changes)\.", key) for key in keys):
        return None
    return (
        f"its field has another number of knots than the configuration, which has knots={config.knots}, "
        f"rank={config.rank}, vector_knots={config.vector_knots}; load it with the config.json it was saved with"
    )


def make_depth(config: Any, layout: TokenLayout | None = None) -> Depth:
    """The depth that a configuration describes, with its field or fields."""
    depth = DEPTHS[config.depth](
        lambda: make_field(config, layout), config.solver_config, **(config.depth_options or {})
    )
    if layout is not None:
        depth.set_layout(layout)
    return depth


def make_field(config: Any, layout: TokenLayout | None = None) -> VectorField | KnottedField:
    """The field that a configuration describes: autonomous, or with weights that move in time.

    Where the patches stand matters to rotary positions only.
    """
    if config.weights_over_time == "network":
        base = make_knot(config, layout)
        return HyperField(base, float(config.horizon), size=config.basis, rank=config.rank)
    shared = config.rank is not None
    knots = [make_knot(config, layout) for _ in range(1 if shared else config.knots)]
    changes = [
        LowRankChange(knots[0], config.rank or 0) for _ in range(config.knots if shared else config.vector_knots or 0)
    ]
    if len(knots) == 1 and not changes:
        return knots[0]
    knot_schedule, change_schedule = knot_schedules(config)
    return KnottedField(knots, knot_schedule, changes, change_schedule)


def knot_schedules(config: Any) -> tuple[KnotSchedule, KnotSchedule]:
    """When the knots of the field stand, and when its changes do; of a single knot's changes are the `knot_times`."""
    horizon, blend, times = float(config.horizon), config.blend, config.knot_times
    if config.rank is not None:
        return KnotSchedule.of(1, horizon, blend), KnotSchedule.of(config.knots, horizon, blend, times)
    single = config.knots == 1
    return (
        KnotSchedule.of(config.knots, horizon, blend, None if single else times),
        KnotSchedule.of(config.vector_knots or 1, horizon, config.vector_blend or blend, times if single else None),
    )


def make_knot(config: Any, layout: TokenLayout | None = None) -> VectorField:
    """An autonomous field, the whole one or what it is at one time.

    A student that was saved before a setting existed has None there, which is what all students had then.
    """
    if config.rope_theta and layout is None:
        raise ValueError("rotary positions need to know where the patches stand; pass the layout of the tokens")
    field = VectorField(
        config.hidden_size,
        config.num_attention_heads,
        config.mlp_ratio,
        attention=config.attention,
        attention_options=config.attention_options,
        norm=config.norm,
        # A stack of different layers has no equation, and nothing to be pulled back to.
        leak=config.leak if DEPTHS[config.depth].shares_field else 0.0,
        fade=Fade(float(config.horizon), config.fade) if config.fade else None,
        bias=config.bias,
        activation=config.activation or "gelu",
        gated=bool(config.gated),
        qk_norm=bool(config.qk_norm),
        rotary=Rotary(config.rope_theta, layout) if config.rope_theta and layout is not None else None,
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
