"""folder -> weights that are numbers, images -> states that were reached; otherwise one sentence."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from odevit.bundled import bundled_or
from odevit.core.solution import Solution
from odevit.errors import IntegrationError, IntegrationWarning, shortened
from odevit.hub import hub_access
from odevit.time_varying.blend_cache import in_transform
from odevit.tokens import Pixels

FAILURES = ("raise", "warn", "ignore")
"""What can be done about an integration that failed; None is `raise` in training, `warn` in evaluation."""


@contextmanager
def loading_errors(source: object, other_head: bool = False) -> Iterator[None]:
    """In this block a model is loaded: damaged files are a ValueError, a silent hub is not waited for.

    `other_head` says that another number of labels was asked for: then weights of another shape are no damage.
    """
    try:
        with hub_access(bundled_or(source)):
            yield
    except OSError as error:  # transformers and the hub have many words for what is not there
        raise ValueError(f"the model {str(source)!r} was not found: {' '.join(str(error).split())}") from error
    except (SafetensorError, RuntimeError, AttributeError, KeyError, TypeError) as error:
        why, remedy = str(error).partition("\n")[0], "Its files are damaged: copy them again"
        if "meta device" in why:
            raise  # how it was called, which is no fault of the files
        if "mismatched" in why:
            why = "its weights have other shapes than its config.json says, or what was given beside it"
            remedy = "Load it as it was saved; if you did, its files are damaged: copy them again"
            if other_head:
                remedy = "For a new head (num_labels=...), pass ignore_mismatched_sizes=True"
        raise ValueError(f"the model {source} cannot be read: {why}. {remedy}") from error


@contextmanager
def hold_load_report() -> Iterator[None]:
    """Where a model is refused in this block, the list of weights that transformers says to ignore is not printed."""
    logger = logging.getLogger("transformers.modeling_utils")
    lists: list[logging.LogRecord] = []

    def hold_back(record: logging.LogRecord) -> bool:
        if "LOAD REPORT" not in record.getMessage():
            return True
        lists.append(record)
        return False

    logger.addFilter(hold_back)
    try:
        yield
    finally:
        logger.removeFilter(hold_back)
    for record in lists:
        logger.handle(record)


def refuse_nan(model: nn.Module, source: object) -> None:
    """Refuse weights that are NaN or infinite: such a model answers as if nothing were wrong."""
    # Quantised weights are tensors of another class, whose numbers are whole, and which few operations know.
    plain = [(name, weight) for name, weight in model.named_parameters() if type(weight) is nn.Parameter]
    tensors = [(name, weight) for name, weight in plain if not weight.is_meta]
    bad = [name for name, weight in tensors if weight.is_floating_point() and not torch.isfinite(weight).all()]
    if bad:
        raise ValueError(
            f"{len(bad)} of the {len(tensors)} weights of {source} hold NaN or infinity ({shortened(bad)}): its "
            "training diverged, or the file is damaged. Train it again with a smaller train.learning_rate, or copy it "
            "again"
        )


def check_solution(solution: Solution, pixels: Pixels, on_failure: str | None, training: bool) -> None:
    """Warn once, or raise, when a trajectory did not reach its end, or not with finite numbers.

    Looking at numbers waits for the device and breaks a graph, so it is done once, at the end, and not at all in a
    graph that is compiled, exported or captured; "ignore" does without. What a solver says of itself costs nothing.
    """
    if on_failure not in (None, *FAILURES):
        raise ValueError(f"on_failure={on_failure!r}; expected one of {', '.join(map(repr, FAILURES))}, or None")
    if on_failure == "ignore" or (solution.failure is None and not can_look(solution.state)) or solution.ok:
        return
    _refuse_nan_pixels(pixels)
    if on_failure == "raise" or (on_failure is None and training):
        remedy = " In training, also lower the learning rate or clip gradients." if training else ""
        raise IntegrationError(f"the integration failed: {solution.status}{remedy}")
    message = f"the integration failed, and what follows from it is no answer: {solution.status}"
    warnings.warn(f"{message} Pass on_failure='raise' to stop here.", IntegrationWarning, stacklevel=2)


def can_look(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are there to be looked at: not while a graph is made, nor within vmap or jvp."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or tensor.is_meta:
        return False
    return not in_transform() and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _refuse_nan_pixels(pixels: Pixels) -> None:
    """Raise where the reason is the images themselves."""
    bad = ~torch.isfinite(pixels).flatten(1).all(dim=1)
    if can_look(pixels) and bad.any():
        raise ValueError(
            f"pixel_values has NaN or infinity in the images {bad.nonzero().flatten().tolist()[:10]} of the batch; "
            "expected finite numbers. Look at how those images were decoded and normalised (a standard deviation of 0?)"
        )
