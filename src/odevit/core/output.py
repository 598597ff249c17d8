"""logits, states, maps, and the trajectory: the output of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from transformers.utils import ModelOutput

from odevit.core.solution import Solution, Stats
from odevit.tokens import AttentionMap, Logits, Tokens


@dataclass
class TrajectoryOutput(ModelOutput):
    """An output whose entries are tensors, with `trajectory`, the `Solution`, and `stats`, its cost, as attributes.

    They are attributes because code that takes an output apart (pipelines, exporters, the Trainer, DataParallel) only
    knows tensors and tuples of tensors. An output that is rebuilt from its entries, as Accelerate does in mixed
    precision, loses them: then both are None.
    """

    trajectory: ClassVar[Solution | None] = None
    stats: ClassVar[Stats | None] = None


@dataclass
class OdeViTModelOutput(TrajectoryOutput):
    """x(T) after the final norm and one vector per image.

    If asked for, hidden states are x at every step, attentions one map for each evaluation of the field, and penalties
    the value of each.
    """

    last_hidden_state: Tokens | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tokens, ...] | None = None
    attentions: tuple[AttentionMap, ...] | None = None
    penalties: dict[str, Tensor] | None = None


@dataclass
class OdeViTImageClassifierOutput(TrajectoryOutput):
    """`loss` (with labels) and `logits`, with the encoder's outputs."""

    loss: Tensor | None = None
    logits: Logits | None = None
    hidden_states: tuple[Tokens, ...] | None = None
    attentions: tuple[AttentionMap, ...] | None = None
    penalties: dict[str, Tensor] | None = None


def with_trajectory(output: Any, solution: Solution) -> Any:
    """An output of any class with the attributes `trajectory` and `stats`."""
    output.trajectory, output.stats = solution, solution.stats
    return output
