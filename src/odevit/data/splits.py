"""Which part is for training, which for choosing models, which for the final number: by the names found.

    train                      -> test is carved out of train (fixed seed, a fifth), validation too
    train + one other          -> the other is the test part; validation is carved out of train
    train + validation + test  -> each is what its name says

The test part never takes part in choosing a model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from odevit.data.counter_rng import SPLIT_STREAM, permutation
from odevit.data.records import Records

logger = logging.getLogger(__name__)

_MEANINGS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_TEST_FRACTION = 0.2
_TEST_SEED = 0  # not an option: everybody's test part of a data set is the same


def is_split_name(name: str) -> bool:
    """Whether `name` says which part it is: "train", "val", "test", ..."""
    return name.lower() in _MEANINGS


def choose_splits(given: Mapping[str, Records], where: str) -> dict[str, Records]:
    """`given` under the names "train", "test" and, where there is one, "validation"."""
    parts: dict[str, Records] = {}
    for name, records in given.items():
        meaning = _MEANINGS.get(name.lower())
        if meaning in parts:
            raise ValueError(f"{where} has two {meaning} parts, one named {name!r}. Join them or remove one.")
        if meaning is not None:
            parts[meaning] = records
    if "train" not in parts:
        raise ValueError(f"{where} has no part named 'train'; it has {', '.join(map(repr, given)) or 'none'}.")
    for name, records in parts.items():
        if len(records) == 0:
            raise ValueError(f"the {name} part of {where} is empty. Fill it, or remove it to have one carved out.")
    if "test" in parts and bool((parts["test"].labels == -1).all()):
        logger.info("%s: the test part has no labels (all are -1) and is ignored", where)
        del parts["test"]
    if "test" not in parts and "validation" in parts:
        logger.info("%s: there is no labelled test part, so the validation part is the test part", where)
        parts["test"] = parts.pop("validation")
    if "test" not in parts:
        whole = parts["train"]
        kept, held = stratified_split(whole.labels, _TEST_FRACTION, _TEST_SEED)
        if len(held) == 0:
            raise ValueError(
                f"{where} has no test part and too few images to carve one out: {len(whole)} in all,"
                " at most one per class. Add images or a test part."
            )
        parts["train"], parts["test"] = whole.subset(kept), whole.subset(held)
        message = "%s: no test part; %d of %d images carved out for it (stratified, seed %d)"
        logger.info(message, where, len(held), len(whole), _TEST_SEED)
    return parts


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """held(c) = round(fraction * n_c) samples of each class c, the same ones for the same seed.

    Indices (kept, held), int64, each ascending, disjoint, together all of them. A class gives at least one sample
    when it has two or more; a class of one sample keeps it.
    """
    count = len(labels)
    order = permutation(seed, 0, count, stream=SPLIT_STREAM)
    by_class = order[labels[order].argsort(stable=True)]  # classes in turn, random order within each
    sizes = torch.bincount(labels)
    start = sizes.cumsum(0) - sizes
    rank = torch.arange(count) - start[labels[by_class]]
    share = (sizes * fraction).round().long().clamp(min=1 if fraction > 0 else 0)
    share = torch.minimum(share, (sizes - 1).clamp(min=0))
    taken = rank < share[labels[by_class]]
    return by_class[~taken].sort().values, by_class[taken].sort().values
