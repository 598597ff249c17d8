"""folder -> model, or an error in one sentence: what transformers lets pass with a warning or a traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from odevit.bundled import bundled_or
from odevit.core.base import HOOKS
from odevit.errors import shortened
from odevit.hf.processor import warn_stretching
from odevit.hub import hub_access
from odevit.time_varying.builder import other_knots


@HOOKS.register("from_pretrained")
def checked_from_pretrained(
    load: Callable[..., Any],
    source: Any,
    *args: Any,
    strict: bool = False,
    remedy: str = "Load it with the class that its config.json names under 'architectures'",
    **kwargs: Any,
) -> Any:
    """`load(source, ...)`, where `load` is the `from_pretrained` of transformers.

    A bundled model may be named. What transformers lets pass with a warning is a ValueError here: weights that are NaN
    or infinite, and weights that the checkpoint lacks, which would be random numbers. A new head is fine.

    Args:
        strict: refuse weights of the checkpoint that the model has no use for as well.
        remedy: the last sentence of the error about weights that do not fit.
    """
    wants_info, source = kwargs.pop("output_loading_info", False), bundled_or(source)
    with hold_load_report():
        with loading_errors(source, new_head=not {"num_labels", "id2label"}.isdisjoint(kwargs)):
            model, info = load(source, *args, output_loading_info=True, **kwargs)
        refuse_nan(model, source)
        missing = sorted(key for key in info["missing_keys"] if not key.startswith("classifier."))
        unexpected = sorted(info["unexpected_keys"])
        misfit = f"the checkpoint {source} does not fit this model, a {type(model).__name__}"
        if problem := other_knots([*missing, *unexpected], model.config):
            raise ValueError(f"{misfit}: {problem}")
        if missing or (strict and unexpected):
            raise ValueError(
                f"{misfit}: {len(missing)} weights are missing ({shortened(missing)}) and {len(unexpected)} are of no "
                f"use ({shortened(unexpected)}). {remedy}"
            )
    if model.config.model_type == "odevit":  # other processors stretch on purpose
        warn_stretching(source)
    return (model, info) if wants_info else model


@contextmanager
def loading_errors(source: object, new_head: bool = False) -> Iterator[None]:
    """A context for loading a model: damaged files are a ValueError, and a silent hub is not waited for.

    With `new_head` another number of labels was given, so that weights of another shape are no damage.
    """
    try:
        with hub_access(bundled_or(source)):
            yield
    except OSError as error:  # transformers and the hub have many of its classes for a missing model
        raise ValueError(f"the model {str(source)!r} was not found: {' '.join(str(error).split())}") from error
    except (SafetensorError, RuntimeError, AttributeError, KeyError, TypeError) as error:
        why, remedy = str(error).partition("\n")[0], "Its files are damaged: copy them again"
        if "meta device" in why:
            raise  # a wrong call, not a damaged file
        if "mismatched" in why:
            why = "its weights have other shapes than its config.json says, or what was given beside it"
            remedy = "Load it as it was saved; if you did, its files are damaged: copy them again"
            if new_head:
                remedy = "For a new head (num_labels=...), pass ignore_mismatched_sizes=True"
        raise ValueError(f"the model {source} cannot be read: {why}. {remedy}") from error


@contextmanager
def hold_load_report() -> Iterator[None]:
    """A context that holds back transformers' LOAD REPORT, and drops it where the model is refused in this block.

    The report says that missing weights can be ignored, which contradicts the error.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    reports: list[logging.LogRecord] = []

    def hold_back(record: logging.LogRecord) -> bool:
        if "LOAD REPORT" not in record.getMessage():
            return True
        reports.append(record)
        return False

    logger.addFilter(hold_back)
    try:
        yield
    finally:
        logger.removeFilter(hold_back)
    for record in reports:
        logger.handle(record)


def refuse_nan(model: nn.Module, source: object) -> None:
    """Refuse weights that are NaN or infinite, with which a model gives an arbitrary class without an error."""
    # Quantised weights are tensors of another class, which hold integers and support few operations.
    plain = [(name, weight) for name, weight in model.named_parameters() if type(weight) is nn.Parameter]
    tensors = [(name, weight) for name, weight in plain if not weight.is_meta]
    bad = [name for name, weight in tensors if weight.is_floating_point() and not torch.isfinite(weight).all()]
    if bad:
        raise ValueError(
            f"{len(bad)} of the {len(tensors)} weights of {source} hold NaN or infinity ({shortened(bad)}): its "
            "training diverged, or the file is damaged. Train it again with a smaller train.learning_rate, or copy it "
            "again"
        )
