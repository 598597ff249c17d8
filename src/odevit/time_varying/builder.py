"""configuration -> field: one set of weights, weights interpolated between knots, or weights from a network."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, ClassVar

from torch import nn

from odevit.core.base import DEPTHS, FIELDS, HOOKS, SOLVERS, Field, FixedStepSolver
from odevit.core.configuration import WIDEST
from odevit.core.field import VectorField
from odevit.core.solver_config import MOST_STEPS
from odevit.errors import Expected, integer, list_of, real
from odevit.time_varying.hyper import HyperField
from odevit.time_varying.knot_schedule import BLENDS, KnotSchedule
from odevit.time_varying.knots import KnottedField
from odevit.time_varying.low_rank import LowRankChange
from odevit.tokens import TokenLayout


class FieldBuilder(ABC):
    """Builds one kind of field from a configuration. A new kind is a subclass with `@FIELDS.register(name)`."""

    choices: ClassVar[Mapping[str, Collection[str]]] = {}
    """Allowed names, by setting."""
    rules: ClassVar[Mapping[str, Expected]] = {}
    """Rules for its other settings."""

    @staticmethod
    @abstractmethod
    def matches(config: Any) -> bool:
        """Whether the configuration describes a field of this kind."""

    @staticmethod
    @abstractmethod
    def make(config: Any, layout: TokenLayout | None) -> Field:
        """Build the field."""

    @staticmethod
    def problems(config: Any) -> list[str]:
        """What is wrong with the combination of its settings, each of which is valid."""
        return []


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
    """A field with one set of weights: the whole field, or one of its knots.

    The configuration of an old student has None for settings that it did not have.
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
        # Layers with different fields have no leak.
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


@FIELDS.register("knots")
class KnotsBuilder(FieldBuilder):
    """Weights that are interpolated between knots."""

    choices: ClassVar = {"blend": BLENDS}
    rules: ClassVar = {
        "knots": integer(1, MOST_STEPS),
        "rank": integer(1, WIDEST, optional=True),
        "vector_knots": integer(2, MOST_STEPS, optional=True),
        "vector_blend": Expected(f"None or one of {', '.join(BLENDS)}", lambda v: v is None or v in BLENDS),
        "knot_times": list_of(real(minimum=0, maximum=1), optional=True),
        "fade": real(minimum=0),
    }

    @staticmethod
    def matches(config: Any) -> bool:
        return config.weights_over_time == "knots" and (config.knots > 1 or config.vector_knots is not None)

    @staticmethod
    def make(config: Any, layout: TokenLayout | None) -> Field:
        shared = config.rank is not None
        knots = [make_vector_field(config, layout) for _ in range(1 if shared else config.knots)]
        count = config.knots if shared else config.vector_knots or 0
        changes = [LowRankChange(knots[0], config.rank or 0) for _ in range(count)]
        knot_schedule, change_schedule = knot_schedules(config)
        return KnottedField(knots, knot_schedule, changes, change_schedule)

    @staticmethod
    def problems(config: Any) -> list[str]:
        problems = []
        constant = {"knots": 1, "vector_knots": None, "fade": 0, "time_conditioned": False}
        if not DEPTHS[config.depth].shares_field:
            problems += [
                f"{name}={getattr(config, name)}, but depth={config.depth!r} has no integration time; leave it out"
                for name, default in constant.items()
                if getattr(config, name) != default
            ]
        fixed = issubclass(SOLVERS[config.solver], FixedStepSolver)
        problems += [
            f"{name}={count}, but steps={config.steps}: some knots would be passed over; expected {name} <= steps, "
            "use more steps or fewer knots"
            for name in ("knots", "vector_knots")
            if fixed and isinstance(count := getattr(config, name), int) and count > (config.steps or count)
        ]
        network = config.weights_over_time == "network"
        if config.rank is not None and config.knots == 1 and not network:
            problems.append(f"rank={config.rank}, but knots=1 has no changes; pass knots=12, for example")
        if config.rank is not None and isinstance(config.vector_knots, int):
            problems.append("rank and vector_knots: low-rank changes include vectors; leave vector_knots out")
        problems += _time_problems(config)
        if config.fade and config.leak and DEPTHS[config.depth].shares_field:
            problems.append(
                f"fade={config.fade} and leak={config.leak}: with a leak, states converge without a fade; pass leak=0 "
                "or fade=0"
            )
        return problems


@FIELDS.register("network")
class NetworkBuilder(FieldBuilder):
    """Weights that a small network computes from the time."""

    choices: ClassVar = {"weights_over_time": ("knots", "network")}
    rules: ClassVar = {"basis": integer(1, 256)}

    @staticmethod
    def matches(config: Any) -> bool:
        return config.weights_over_time == "network"

    @staticmethod
    def make(config: Any, layout: TokenLayout | None) -> Field:
        base = make_vector_field(config, layout)
        return HyperField(base, float(config.horizon), size=config.basis, rank=config.rank)

    @staticmethod
    def problems(config: Any) -> list[str]:
        if config.weights_over_time != "network":
            return []
        knots = {"knots": 1, "vector_knots": None, "knot_times": None}
        problems = [
            f"weights_over_time=network and {name}={getattr(config, name)}: use a network or knots; leave one out"
            for name, default in knots.items()
            if getattr(config, name) != default
        ]
        if not DEPTHS[config.depth].shares_field:
            problems.append(
                f"weights_over_time=network, but depth={config.depth!r} has no integration time; leave it out"
            )
        return problems


def knot_schedules(config: Any) -> tuple[KnotSchedule, KnotSchedule]:
    """The schedules of the knots and of the changes; with one knot, `knot_times` are those of the changes."""
    horizon, blend, times = float(config.horizon), config.blend, config.knot_times
    if config.rank is not None:
        return KnotSchedule.of(1, horizon, blend), KnotSchedule.of(config.knots, horizon, blend, times)
    single = config.knots == 1
    return (
        KnotSchedule.of(config.knots, horizon, blend, None if single else times),
        KnotSchedule.of(config.vector_knots or 1, horizon, config.vector_blend or blend, times if single else None),
    )


def other_knots(keys: Iterable[str], config: Any) -> str | None:
    """The error for missing or unused weights, if they belong to a field with other knots; None otherwise."""
    if not any(re.search(r"\bfield\.(knots|changes)\.", key) for key in keys):
        return None
    return (
        f"its field has another number of knots than the configuration, which has knots={config.knots}, "
        f"rank={config.rank}, vector_knots={config.vector_knots}; load it with the config.json it was saved with"
    )


def _time_problems(config: Any) -> list[str]:
    """What is wrong with `knot_times`."""
    if config.knot_times is None:
        return []
    times = list(config.knot_times)
    increasing = all(early < late for early, late in pairwise(times))
    # With one knot, they are the times of the changes of its vectors.
    count = config.vector_knots if config.knots == 1 else config.knots
    if count is None:
        return [f"knot_times={times}, but knots=1 is constant in time; pass knots={max(2, len(times))}"]
    if count != "blocks" and (len(times) != count or not increasing):
        return [f"knot_times={times}; expected {count} increasing shares of the horizon in [0, 1], one for each knot"]
    return []
