"""Steps that are recomputed in the backward pass: memory grows with log4(N) states, time with log4(N)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.utils import logging

from odevit.core.base import HOOKS, History
from odevit.core.solve import PlannedStep, Recompute

logger = logging.get_logger(__name__)

BRANCHING = 4
"""Steps are divided into this many segments, and each segment again, down to single steps.

Memory grows with log4(N) states, and a step is computed log4(N) times. One division into N single steps would compute
each step twice and keep N states, which for small fields is most of the memory.
"""


class Segment(NamedTuple):
    """The result of a segment of steps: the state, the running costs, the saved states and maps, and the history."""

    x: Tensor
    costs: tuple[Tensor, ...]
    saved: tuple[tuple[Tensor, ...], ...]
    history: History


RunSegment = Callable[[Tensor, tuple[Tensor, ...], list[PlannedStep], History], Segment]
"""Runs the loop over some steps."""


def checkpointed(
    run: RunSegment,
    x: Tensor,
    costs: tuple[Tensor, ...],
    plan: list[PlannedStep],
    options: Recompute,
    *,
    preserve_rng_state: bool,
) -> Segment:
    """`run` over all steps, divided into segments that are recomputed in the backward pass."""
    torch_options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": preserve_rng_state}
    torch_options |= options if isinstance(options, Mapping) else {}
    return _divide(run, torch_options, plan, x, costs, ())


def _divide(
    run: RunSegment,
    options: Mapping[str, Any],
    plan: list[PlannedStep],
    x: Tensor,
    costs: tuple[Tensor, ...],
    times: tuple[float, ...],
    *slopes: Tensor,
) -> Segment:
    history: History = tuple(zip(times, slopes, strict=True))
    saved: list[tuple[tuple[Tensor, ...], ...]] = []
    pieces = min(BRANCHING, len(plan))
    cuts = [len(plan) * i // pieces for i in range(pieces + 1)]
    for first, last in pairwise(cuts):
        part = plan[first:last]
        inner = partial(_divide, run, options, part) if len(part) > 1 else partial(_single, run, part)
        # Slopes are separate arguments: checkpoint would keep tensors inside a tuple alive.
        segment = checkpoint(inner, x, costs, tuple(t for t, _ in history), *(slope for _, slope in history), **options)
        x, costs, history = segment.x, segment.costs, segment.history
        saved.append(segment.saved)
    return Segment(x, costs, tuple(sum(tensors, ()) for tensors in zip(*saved, strict=True)), history)


def _single(
    run: RunSegment,
    plan: list[PlannedStep],
    x: Tensor,
    costs: tuple[Tensor, ...],
    times: tuple[float, ...],
    *slopes: Tensor,
) -> Segment:
    return run(x, costs, plan, tuple(zip(times, slopes, strict=True)))


@HOOKS.register("checkpoint_function")
def checkpoint_function(given: Callable[..., Any]) -> Callable[..., Any]:
    """torch's checkpoint with the options of the given one and use_reentrant=False."""
    options = getattr(given, "keywords", {})
    if options.get("use_reentrant"):
        logger.warning_once(
            "use_reentrant=True is not possible: every step also uses x(0), and a reentrant checkpoint would run the "
            "backward pass of x(0) once for each step. use_reentrant=False is used, with the same gradients"
        )
    return partial(checkpoint, **{**options, "use_reentrant": False})
