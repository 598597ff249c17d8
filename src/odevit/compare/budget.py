"""|parameters(width, ratio) - budget| -> min: models of different depths, made equally large."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from odevit.core.configuration import WIDEST
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.modeling_odevit import OdeViTForImageClassification

NEAR = 0.02
"""A model within this share of the budget is left as it is."""
WHOLE, WIDE = 8, 64
"""Rows of 8 numbers are what matrix units read at once; wide models have a multiple of them, narrow ones no choice."""


def parameters_of(settings: Mapping[str, Any]) -> int:
    """How many parameters a model with these settings has; none of them is made."""
    with torch.device("meta"):
        return OdeViTForImageClassification(OdeViTConfig(**settings)).parameter_count


def fit_to_budget(settings: Mapping[str, Any], budget: int) -> dict[str, Any]:
    """What to change in a model so that it has `budget` parameters: nothing, or its width and the ratio of its MLP.

    First the width that comes nearest, in whole channels of every head, since the parameters grow with its square; the
    hidden units of the MLP, of which each costs the same, then take what is left. Wide models get multiples of eight
    of both, as matrix units read them.
    """
    if near(parameters_of(settings), budget):
        return {}
    config = OdeViTConfig(**settings)
    unit, ratio = int(config.num_attention_heads or 1) * (4 if config.rope_theta else 1), float(config.mlp_ratio or 1)

    @cache
    def count(width: int, share: float = ratio) -> int:
        return parameters_of({**settings, "hidden_size": width, "mlp_ratio": share})

    def nearest_width(unit: int) -> int:
        return unit * nearest(lambda units: count(unit * units), budget, least=-(-2 // unit), most=WIDEST // unit)

    width = nearest_width(unit)
    if width >= WIDE:
        width = nearest_width(math.lcm(unit, WHOLE))
    usual = max(1, round(width * ratio))
    each = count(width, (usual + 1) / width) - count(width, usual / width)
    hidden = usual if each <= 0 else max(1, usual + round((budget - count(width, usual / width)) / each))
    whole = WHOLE * max(1, round(hidden / WHOLE))
    if hidden >= WIDE and near(count(width, whole / width), budget):
        hidden = whole
    return {"hidden_size": width, "mlp_ratio": round(hidden / width, 6)}


def near(parameters: int, budget: int) -> bool:
    return abs(parameters - budget) <= NEAR * budget


def nearest(rising: Callable[[int], int], goal: int, least: int, most: int) -> int:
    """The n in [least, most] whose value of a rising function is nearest to the goal, by bisection."""
    low, high = least, least
    while high < most and rising(high) < goal:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rising(middle) < goal else (low, middle)
    return min((low, high), key=lambda n: abs(rising(n) - goal))
