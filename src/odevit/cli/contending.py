"""odevit compare: systems -> a table, a figure and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odevit.cli.parser import Command, print_table
from odevit.compare.report import HEAD, JSON, PAGE, cells, ranked
from odevit.compare.runner import compare as compare
from odevit.train.compose import GROUPS


class CompareVerb(Command):
    """A verb that also takes the keys and groups of a recipe: those with a dot, and groups other than its own keys."""

    def parse(self, words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        groups = {*GROUPS} - {*self.arguments()[1], "system"}
        keys = {word: word.partition("=")[0] for word in words if "=" in word}
        recipe = [word for word, key in keys.items() if key in groups or ("." in key and "/" not in key)]
        positional, keywords = super().parse([word for word in words if word not in recipe])
        return positional, {**keywords, **({"overrides": tuple(recipe)} if recipe else {})}


def _show(folder: Path) -> None:
    rows = ranked(json.loads((folder / JSON).read_text())["rows"])
    print_table([cells(row) for row in rows], HEAD, left=("system",))
    print(folder / PAGE)


COMPARE = CompareVerb(
    "compare",
    compare,
    _show,
    (
        "odevit compare systems=vit,ode-vit,attractor seeds=0,1,2 epochs=20",
        "odevit compare data=FOLDER parameters=500000 updates=2000 train.batch_size=256",
    ),
)
