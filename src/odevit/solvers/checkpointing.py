"""Steps that are computed again in the backward pass: memory grows like log4(N) states, time with log4(N)."""

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
"""Into how many stretches checkpointing cuts the steps, and each of those again.

Memory then grows with log4(N) states, and a step is computed log4(N) times. Cutting once into N single steps computes
each step only twice, but keeps N states: for small fields that is most of the memory to be saved.
"""


class Stretch(NamedTuple):
    """The result of a stretch of steps: the state, the running costs, what was kept, and the solver's history."""

    x: Tensor
    costs: tuple[Tensor, ...]
    kept: tuple[tuple[Tensor, ...], ...]
    history: History


Run = Callable[[Tensor, tuple[Tensor, ...], list[PlannedStep], History], Stretch]
"""Runs the loop over some steps."""


def recomputed(
    run: Run,
    x: Tensor,
    costs: tuple[Tensor, ...],
    plan: list[PlannedStep],
    options: Recompute,
    *,
    preserve_rng_state: bool,
) -> Stretch:
    """`run` over all steps, which are cut into stretches and computed again in the backward pass."""
    torch_options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": preserve_rng_state}
    torch_options |= options if isinstance(options, Mapping) else {}
    return _recomputed(run, torch_options, plan, x, costs, ())


def _recomputed(
    run: Run,
    options: Mapping[str, Any],
    plan: list[PlannedStep],
    x: Tensor,
    costs: tuple[Tensor, ...],
    since: tuple[float, ...],
    *slopes: Tensor,
) -> Stretch:
    kept: list[tuple[tuple[Tensor, ...], ...]] = []
    history: History = tuple(zip(since, slopes, strict=True))
    pieces = min(BRANCHING, len(plan))
    cuts = [len(plan) * i // pieces for i in range(pieces + 1)]
    for first, last in pairwise(cuts):
        part = plan[first:last]
        inner = partial(_recomputed, run, options, part) if len(part) > 1 else partial(_single, run, part)
        # States and slopes are arguments of their own: within a tuple checkpoint would keep every one alive.
        stretch = checkpoint(inner, x, costs, tuple(t for t, _ in history), *(slope for _, slope in history), **options)
        x, costs, history = stretch.x, stretch.costs, stretch.history
        kept.append(stretch.kept)
    return Stretch(x, costs, tuple(sum(of, ()) for of in zip(*kept, strict=True)), history)


def _single(
    run: Run, part: list[PlannedStep], x: Tensor, costs: tuple[Tensor, ...], since: tuple[float, ...], *slopes: Tensor
) -> Stretch:
    return run(x, costs, part, tuple(zip(since, slopes, strict=True)))


@HOOKS.register("checkpoint_function")
def checkpoint_function(given: Callable[..., Any]) -> Callable[..., Any]:
    """torch's checkpoint with the options of the given one, never reentrant."""
    options = getattr(given, "keywords", {})
    if options.get("use_reentrant"):
        logger.warning_once(
            "use_reentrant=True is not possible: every step also uses x(0), and a reentrant checkpoint would run its "
            "backward pass once for each step. use_reentrant=False is used, with the same gradients"
        )
    return partial(checkpoint, **{**options, "use_reentrant": False})
