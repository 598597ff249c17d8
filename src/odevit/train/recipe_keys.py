"""key=value as text, and the keys of recipes of version 0.2: their names today, and those that are gone.

This is the only place that knows old names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_PHASES = {"forced": "layerwise", "walk": "rollout", "any_way": "random_solver"}
_RENAMED = {
    "data.cache": "cache",
    "train.own": "train.own_share",
    "teacher_train.own": "teacher_train.own_share",
    "objective.meeting": "objective.match",
    "objective.forced": "objective.teacher_forcing",
    "phases.*.forced": "phases.*.teacher_forcing",
    "phases.*.ways": "phases.*.solver_configs",
    "phases.*.left": "phases.*.final_rate",
    "phases.*.objective.meeting": "phases.*.objective.match",
}
"""Old key -> new key; `*` is the name of a phase."""

_TRAIN = {
    **{"patience": 0, "workers": 2, "jacobian_distance": 0.03, "settling_margin": 0.1, "settling_step": 1.0},
    **{"settling_waiting": 12, "settling_turning": 8, "settling_counted": 2, "settling_distance": 0.01},
}
_MODEL = (
    *("activation", "drop_path", "embedding_dropout", "fade", "gated", "image_mean", "image_std", "init"),
    *("initializer_range", "norm_eps", "num_channels", "on_failure", "qk_norm", "register_positions"),
    *("residual_scale", "rope_theta"),
)
_STUDENT = {
    **dict.fromkeys(("activation", "gated", "hidden_size", "norm_eps", "num_attention_heads", "on_failure", "qk_norm")),
    **dict.fromkeys(("residual_scale", "rope_theta", "tolerance", "attention_options", "depth_options")),
    **{"depth": "ode", "basis": 4, "drop_path": 0.0, "positions": "auto", "weights_over_time": "knots"},
}
REMOVED: dict[str, Any] = {
    **dict.fromkeys(f"model.{key}" for key in _MODEL),
    **{f"student.{key}": value for key, value in _STUDENT.items()},
    **{"data.augmentation.randaugment_ops": 0, "data.augmentation.randaugment_magnitude": 9.0},
    **{"data.augmentation.colour": 0.0, "data.augmentation.repeats": 1},
    **{"data.image_size": None, "data.split_seed": 0, "features": "", "objective.seen": 1.0},
    **{"stopping.radius": 10.0, "stopping.error": "norm"},
    **{f"{group}.{key}": value for group in ("train", "teacher_train") for key, value in _TRAIN.items()},
    **{f"objective.{key}": value for key, value in _TRAIN.items() if "_" in key},
}
"""Keys that are gone -> the only value that a recipe of 0.2 may have there: the default it had."""


def current_key(key: str) -> str:
    """The name that a key of 0.2 has today: `train.own` is `train.own_share`. Other keys are given back as they are."""
    group, *rest = key.split(".")
    if group != "phases" or not rest:
        return _RENAMED.get(key, key)
    phase = _PHASES.get(rest[0], rest[0])
    pattern = ".".join(["phases.*", *rest[1:]])
    return _RENAMED.get(pattern, pattern).replace("*", phase, 1)


def current_recipe(content: Mapping[str, Any]) -> dict[str, Any]:
    """A saved recipe with the keys of today, without removed keys that have their default.

    A removed key with another value stays, so that the caller can refuse it; see `removed_problems`.
    """
    result: dict[str, Any] = {}
    for key, value in _flat(content).items():
        if key in REMOVED and value == REMOVED[key]:
            continue
        *groups, name = current_key(key).split(".")
        inner = result
        for group in groups:
            inner = inner.setdefault(group, {})
        if value is not None or groups[:1] != ["phases"]:  # None in a phase: the value of the common objective
            inner[name] = value
    return result


def removed_problems(content: Mapping[str, Any], group: str = "") -> list[str]:
    """A sentence for every removed key of a saved recipe, of those in one group if it is named."""
    keys = [key for key in _flat(content) if key in REMOVED and key.startswith(group)]
    return [
        f"{key}: this option was removed after version 0.2; only its default {REMOVED[key]} is read" for key in keys
    ]


def current_overrides(overrides: Sequence[str]) -> list[str]:
    """The same for overrides as they are typed: `train.own=0.4` is `train.own_share=0.4`."""
    split = [override.partition("=") for override in overrides]
    return [current_key(key) + equals + value for key, equals, value in split]


def given_keys(overrides: Sequence[str]) -> dict[str, str]:
    """The keys that are given a value, with the text of it: {"seed": "1"} for ["seed=1", "out="]."""
    return {key: value for key, _, value in (override.partition("=") for override in overrides) if value}


def quoted(value: str) -> str:
    """A text that Hydra reads as it is."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def word(value: Any) -> str:
    """A value as it is typed: `true`, `[4,8]`, or the text itself."""
    is_text = not isinstance(value, bool | list | tuple | None)
    return str(value) if is_text else json.dumps(value, default=str, separators=(",", ":"))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"epochs": 1}} -> {"train.epochs": 1}; an empty dictionary is a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
