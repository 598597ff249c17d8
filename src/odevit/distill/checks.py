"""What cannot be distilled as asked is said before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from odevit.distill.objective import DistillObjective
from odevit.errors import ConfigError
from odevit.surgery.block_locator import linear_heads
from odevit.surgery.modeling_student import OdeStudent
from odevit.tokens import Tokens


def finite(states: tuple[Tokens, ...]) -> tuple[Tokens, ...]:
    """The states of a teacher, if they are numbers."""
    for layer, state in enumerate(states):
        if not torch.isfinite(state).all():
            place = f"its block {layer}" if layer else "its embedding"
            raise ValueError(
                f"the teacher's states are not all finite: NaN or infinity comes out of {place} for training images; "
                "check the pixel statistics in its preprocessor_config.json"
            )
    return states


def refuse_pooled(student: OdeStudent, goals: Mapping[str, DistillObjective]) -> None:
    """Refuse to match what a head is given, in any of the phases, where no head is found that could tell."""
    vit_spec = student.vit_spec
    if linear_heads(student.model, vit_spec.locator, vit_spec.labels):
        return
    why = f"{type(student.model).__name__} has no linear head with {vit_spec.labels} outputs beside its blocks"
    weighed = {key: goal.pooled for key, goal in by_key(goals).items() if goal.pooled}
    if problems := [f"{key}.pooled={w:g}: {why}; set it to 0, and {key}.cls=1" for key, w in weighed.items()]:
        raise ConfigError("the recipe", problems)


def by_key(goals: Mapping[str, DistillObjective]) -> dict[str, DistillObjective]:
    """Objectives by the key to type; the one without phases has no name."""
    return {f"phases.{name}.objective" if name else "objective": goal for name, goal in goals.items()}
