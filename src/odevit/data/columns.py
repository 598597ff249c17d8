"""Which column is the image, which the label: by name when asked, otherwise by type and by habit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "category", "cls")
"""Names a label column usually has, the most usual first."""


@dataclass(frozen=True)
class Column:
    """What a column holds. `kind` is "image", "class" (named integers), "integer" or "other"."""

    kind: str
    described: str
    classes: tuple[str, ...] | None = None


def choose_image_column(columns: Mapping[str, Column], asked: str | None, where: str) -> str:
    """The column asked for, or the first that holds images."""
    if asked is not None:
        return _named(columns, asked, where, "image_column")
    for name, column in columns.items():
        if column.kind == "image":
            return name
    raise ValueError(f"{where} has no image column; it has {listed(columns)}. Say image_column='...'.")


def choose_label_column(columns: Mapping[str, Column], asked: str | None, where: str) -> str:
    """The column asked for, or one with a usual name, or the only one with named classes."""
    name = _named(columns, asked, where, "label_column") if asked is not None else _usual(columns, where)
    column = columns[name]
    if column.kind not in ("class", "integer"):
        usable = [other for other, held in columns.items() if held.kind in ("class", "integer")]
        instead = f"say label_column={usable[0]!r}" if usable else "number the classes 0, 1, 2, ... first"
        raise ValueError(
            f"the label column {name!r} of {where} holds {column.described}; expected integers, one number"
            f" for each class: {instead} (with `datasets`: dataset.class_encode_column({name!r}))."
        )
    return name


def listed(columns: Mapping[str, Column]) -> str:
    """The columns present, for an error."""
    return ", ".join(f"{name!r} ({column.described})" for name, column in columns.items()) or "no columns"


def _named(columns: Mapping[str, Column], asked: str, where: str, argument: str) -> str:
    if asked not in columns:
        raise ValueError(f"{argument}={asked!r} is not a column of {where}; it has {listed(columns)}.")
    return asked


def _usual(columns: Mapping[str, Column], where: str) -> str:
    for name in LABEL_NAMES:
        if name in columns:
            return name
    named = [name for name, column in columns.items() if column.kind == "class"]
    if len(named) == 1:
        return named[0]
    raise ValueError(f"no label column found in {where}; it has {listed(columns)}. Say label_column='...'.")
