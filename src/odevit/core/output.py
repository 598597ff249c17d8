"""logits, states, maps: what a model gives back, tensors for machines and the whole trajectory beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from transformers.utils import ModelOutput

from odevit.core.solution import Solution, Stats
from odevit.tokens import AttentionMap, Logits, Tokens


@dataclass
class FollowedOutput(ModelOutput):
    """An output whose entries are tensors, with `trajectory`, the `Solution`, and `stats`, its cost, as attributes.

    Attributes and not entries, because whoever takes an output apart (pipelines with batches, exporters, the Trainer's
    predictions, DataParallel) knows tensors and tuples of them only. Registered as a pytree, a `Solution` would please
    the exporters among them, but not pipelines, Trainer and DataParallel, which have their own recursions. What is
    rebuilt from its entries on the way (by Accelerate in mixed precision, say) comes without: then both are None.
    """

    trajectory: ClassVar[Solution | None] = None
    stats: ClassVar[Stats | None] = None


@dataclass
class OdeViTModelOutput(FollowedOutput):
    """x(T) after the final norm and one vector per image.

    Hidden states are x at every step, attentions one map for each evaluation of the field, penalties what each of them
    came to, when asked for.
    """

    last_hidden_state: Tokens | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tokens, ...] | None = None
    attentions: tuple[AttentionMap, ...] | None = None
    penalties: dict[str, Tensor] | None = None


@dataclass
class OdeViTImageClassifierOutput(FollowedOutput):
    """`loss` (with labels) and `logits`, with the encoder's outputs."""

    loss: Tensor | None = None
    logits: Logits | None = None
    hidden_states: tuple[Tokens, ...] | None = None
    attentions: tuple[AttentionMap, ...] | None = None
    penalties: dict[str, Tensor] | None = None


def followed(output: Any, solution: Solution) -> Any:
    """An output of any class, with the trajectory that led to it and its cost beside the entries."""
    output.trajectory, output.stats = solution, solution.stats
    return output
