"""class of the data -> number of the class with that name in a model."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from odevit.data.images import DataSet

_SHOWN = 10
_NUMBER = re.compile(r"(?:(?:label|class)[ _-]?)?(\d+)", re.IGNORECASE)


def align_classes(data: DataSet, known: Sequence[str], who: str, remedy: str) -> DataSet:
    """The data with labels renumbered as a model numbers its classes; an error if the model lacks one.

    The data may have fewer classes than the model, in any order. Names that are only numbers (0, LABEL_0) are matched
    by number, if both sides have equally many, and a line is printed.

    Args:
        data: with names and an order of its own.
        known: the names of the model's classes, in the order of its logits.
        who: the name of the model in messages.
        remedy: what to do if it lacks a class, for the error.
    """
    given, names = data.classes, tuple(known)
    numbers = match_class_names(given, names)
    uses = Counter(numbers)
    lost = [name for name, number in zip(given, numbers, strict=True) if number is None or uses[number] > 1]
    if lost:
        numbers = _match_numbers(given, names)
        if not numbers:
            raise ValueError(
                f"the data has {len(given)} classes ({_listed(given)}), {who} has {len(names)} ({_listed(names)}), but "
                f"not exactly one for {_listed(lost)}; {remedy}"
            )
    if _values(names) and len(given) == len(names):  # a model without class names takes those of the data
        names = tuple(name for _, name in sorted(zip(numbers, given, strict=True)))
    if lost:
        pairs = _listed([f"{number} = {name}" for number, name in enumerate(names)])
        print(f"classes are matched by number, since {who} or the data has no names for them: {pairs}", flush=True)
    moved: dict[str, Any] = {}
    if numbers != list(range(len(given))):
        table = torch.tensor(numbers)
        for split in ("train", "validation", "test"):
            images = getattr(data, split)
            moved[split] = images.with_labels(table[images.labels])
    return replace(data, classes=names, **moved)


def match_class_names(given: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """For each given name the number of the known class with that name; None if there is none, or several.

    Case, spaces, hyphens and underscores count only if two known names differ in nothing else. A known name may list
    synonyms: "tench" matches "tench, Tinca tinca".
    """
    if [*map(_plain, given)] == [*map(_plain, known)]:  # also if a name occurs twice: ImageNet has two cranes
        return list(range(len(given)))
    exact = _places([name] for name in known)
    alike = _places([_plain(name)] for name in known)
    synonyms = _places(map(_plain, name.split(",")) for name in known)
    found = [exact.get(name) or alike.get(_plain(name)) or synonyms.get(_plain(name)) or () for name in given]
    return [next(iter(places)) if len(places) == 1 else None for places in found]


def _match_numbers(given: Sequence[str], known: Sequence[str]) -> list[Any]:
    """The same by number, if one side has only numbers for names; [] if that is not possible."""
    ours, theirs = _values(given), _values(known)
    if len(given) != len(known) or not (ours or theirs):
        return []
    order = list(range(len(given)))
    place = {value: number for number, value in enumerate(theirs or order)}
    return [place[value] for value in ours or order]


def _values(names: Sequence[str]) -> list[int]:
    """[2, 0, 1] for ("LABEL_2", "LABEL_0", "LABEL_1"); [] for other names."""
    values = [int(match.group(1)) for name in names if (match := _NUMBER.fullmatch(name))]
    return values if sorted(values) == list(range(len(names))) else []


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def _places(keys: Iterable[Iterable[str]]) -> dict[str, set[int]]:
    """Key -> the positions of the entries that have it."""
    places: dict[str, set[int]] = defaultdict(set)
    for number, own in enumerate(keys):
        for key in own:
            places[key].add(number)
    return places


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
