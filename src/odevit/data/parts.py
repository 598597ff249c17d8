"""Which part is for training, which for choosing, which for the final number: by the names found.

    train                      -> test is carved out of train (fixed seed, a fifth), validation too
    train + one other          -> the other is the test part; validation is carved out of train
    train + validation + test  -> each is what it says

The test part never takes part in choosing a model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from odevit.data.records import ChosenRecords, Records
from odevit.data.split import stratified_split

logger = logging.getLogger(__name__)

_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
_TEST_FRACTION = 0.2
_TEST_SEED = 0  # not an option: everybody's test part of a data set is the same


def is_part_name(name: str) -> bool:
    """Whether `name` says which part it is: "train", "val", "test", ..."""
    return name.lower() in _NAMES


def numbered_classes(found: Mapping[str, Records]) -> tuple[str, ...]:
    """Names for classes that have only numbers: "0" to the highest label of the training part."""
    trained = [records for name, records in found.items() if _NAMES.get(name.lower()) == "train"]
    highest = max((int(records.labels.max()) for records in trained if len(records)), default=0)
    return tuple(str(number) for number in range(highest + 1))


def choose_parts(found: Mapping[str, Records], where: str) -> dict[str, Records]:
    """`found` under the names "train", "test" and, where there is one, "validation"."""
    parts: dict[str, Records] = {}
    for name, records in found.items():
        meaning = _NAMES.get(name.lower())
        if meaning in parts:
            raise ValueError(f"{where} has two {meaning} parts, one named {name!r}. Join them or remove one.")
        if meaning is not None:
            parts[meaning] = records
    if "train" not in parts:
        raise ValueError(f"{where} has no part named 'train'; it has {', '.join(map(repr, found)) or 'none'}.")
    for name, records in list(parts.items()):
        if len(records) == 0:
            raise ValueError(f"the {name} part of {where} is empty. Fill it, or remove it to have one carved.")
    if "test" in parts and bool((parts["test"].labels == -1).all()):
        logger.info("%s: the test part has no labels (all are -1) and is left aside", where)
        del parts["test"]
    if "test" not in parts and "validation" in parts:
        logger.info("%s: there is no labelled test part, so the validation part is the test part", where)
        parts["test"] = parts.pop("validation")
    if "test" not in parts:
        whole = parts["train"]
        kept, held = stratified_split(whole.labels, _TEST_FRACTION, _TEST_SEED)
        if len(held) == 0:
            raise ValueError(
                f"{where} has no test part and too few images to carve one: {len(whole)} in all,"
                " at most one in each class. Add images or a test part."
            )
        parts["train"], parts["test"] = ChosenRecords(whole, kept), ChosenRecords(whole, held)
        logger.info(
            "%s: no test part; %d of %d images carved out for it (stratified, seed %d)",
            where,
            len(held),
            len(whole),
            _TEST_SEED,
        )
    return parts
