"""The splits of a source -> train, test and maybe validation, by their names.

    train                      -> test is a fifth of train (fixed seed), validation is taken from the rest
    train + one other          -> the other is the test split; validation is taken from train
    train + validation + test  -> as named

The test split is never used to choose a model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from odevit.data.counter_rng import SPLIT_STREAM, permutation
from odevit.data.records import Records

logger = logging.getLogger(__name__)

_CANONICAL = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_TEST_FRACTION = 0.2
_TEST_SEED = 0  # not an option: everyone gets the same test split


def is_split_name(name: str) -> bool:
    """Whether `name` is that of a split: "train", "val", "test", ..."""
    return name.lower() in _CANONICAL


def choose_splits(given: Mapping[str, Records], where: str) -> dict[str, Records]:
    """The records by the names "train", "test" and, if the source has it, "validation"."""
    splits: dict[str, Records] = {}
    for name, records in given.items():
        split = _CANONICAL.get(name.lower())
        if split in splits:
            raise ValueError(f"{where} has two {split} splits, one named {name!r}. Join them or remove one.")
        if split is not None:
            splits[split] = records
    if "train" not in splits:
        raise ValueError(f"{where} has no split named 'train'; it has {', '.join(map(repr, given)) or 'none'}.")
    for name, records in splits.items():
        if len(records) == 0:
            raise ValueError(f"the {name} split of {where} is empty. Fill it, or remove it to have one made.")
    if "test" in splits and bool((splits["test"].labels == -1).all()):
        logger.info("%s: the test split has no labels (all are -1) and is ignored", where)
        del splits["test"]
    if "test" not in splits and "validation" in splits:
        logger.info("%s: there is no labelled test split, so the validation split is the test split", where)
        splits["test"] = splits.pop("validation")
    if "test" not in splits:
        whole = splits["train"]
        kept, held = stratified_split(whole.labels, _TEST_FRACTION, _TEST_SEED)
        if len(held) == 0:
            raise ValueError(
                f"{where} has no test split and too few images to take one from: {len(whole)} in all,"
                " at most one per class. Add images or a test split."
            )
        splits["train"], splits["test"] = whole.subset(kept), whole.subset(held)
        message = "%s: no test split; %d of %d images are used as such (stratified, seed %d)"
        logger.info(message, where, len(held), len(whole), _TEST_SEED)
    return splits


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """held(c) = round(fraction * n_c) samples of each class c, the same for the same seed.

    Returns disjoint indices (kept, held), int64 and ascending, that together are all. If fraction > 0, a class with two
    or more samples gives at least one; a class with a single sample keeps it.
    """
    count = len(labels)
    order = permutation(seed, 0, count, stream=SPLIT_STREAM)
    by_class = order[labels[order].argsort(stable=True)]  # sorted by class, in random order within each
    sizes = torch.bincount(labels)
    start = sizes.cumsum(0) - sizes
    rank = torch.arange(count) - start[labels[by_class]]
    share = (sizes * fraction).round().long().clamp(min=1 if fraction > 0 else 0)
    share = torch.minimum(share, (sizes - 1).clamp(min=0))
    taken = rank < share[labels[by_class]]
    return by_class[~taken].sort().values, by_class[taken].sort().values
