"""folder -> weights that are numbers, images -> states that were reached; otherwise one sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from odevit.bundled import bundled_or
from odevit.errors import shortened
from odevit.hf.processor import warn_stretching
from odevit.hub import hub_access
from odevit.time_varying.builder import other_knots


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


def checked_from_pretrained(load: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """`load` with every weight of the checkpoint checked; see `OdeViTModel.from_pretrained`."""
    wants_info = kwargs.pop("output_loading_info", False)
    folder = bundled_or(source)
    with hold_load_report():
        with loading_errors(folder, other_head=not {"num_labels", "id2label"}.isdisjoint(kwargs)):
            model, info = load(folder, *args, output_loading_info=True, **kwargs)
        refuse_nan(model, folder)
        missing = sorted(key for key in info["missing_keys"] if not key.startswith("classifier."))
        unexpected = sorted(info["unexpected_keys"])
        if problem := other_knots([*missing, *unexpected], model.config):
            raise ValueError(f"the checkpoint {folder} does not fit this model: {problem}")
        if missing:
            raise ValueError(
                f"the checkpoint {folder} does not fit this model: {len(missing)} weights are "
                f"missing ({shortened(missing)}) and {len(unexpected)} are of no use ({shortened(unexpected)}). "
                "Load it with the class that its config.json names under 'architectures'"
            )
    warn_stretching(folder)
    return (model, info) if wants_info else model
