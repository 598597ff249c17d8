"""?model=cifar10&steps=24&t=0.5 <-> View: what the page shows, in its address, so that a view can be shared."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from odevit.analysis.perturbation import KINDS
from odevit.core.base import SOLVERS
from odevit.errors import Expected, integer, real
from odevit.explorer.drawings import DRAWINGS

MOST_STEPS = 128
MOST_HORIZON = 100.0
MOST_CHARACTERS = 2000
"""Addresses that are longer are not read at all."""


@dataclass(frozen=True)
class View:
    """What the page shows. None leaves a choice to the model.

    Args:
        picture: the name of a drawing. A picture of one's own stays in the browser and is in no address.
        model, solver, steps, horizon: what is asked, and how it integrates.
        other: a second model, shown beside the first; none unless given. other_solver, other_steps and other_horizon
            are its own way.
        t: the moment that is shown, in horizons.
        head: `mean`, `rollout`, or the number of a head from 1.
        mass: share of the attention that is outlined.
        row, column: the patch that is perturbed.
        kind: `token` or `picture`, what of the patch is changed.
    """

    picture: str = "frog"
    model: str | None = None
    solver: str | None = None
    steps: int | None = None
    horizon: float | None = None
    other: str | None = None
    other_solver: str | None = None
    other_steps: int | None = None
    other_horizon: float | None = None
    t: float = 1.0
    head: str = "mean"
    mass: float = 0.6
    row: int | None = None
    column: int | None = None
    kind: str = "token"

    def query(self) -> str:
        """The part of an address after its question mark: what is not as usual."""
        usual = View()
        entries = {field.name: getattr(self, field.name) for field in fields(self)}
        return urlencode({name: value for name, value in entries.items() if value != getattr(usual, name)})


def read_query(query: str, models: Collection[str]) -> tuple[View, list[str]]:
    """The view of an address, and a sentence for every part of it that cannot be shown and is left out."""
    if len(query) > MOST_CHARACTERS:
        return View(), [f"the address has {len(query):,} characters and was not read; expected {MOST_CHARACTERS:,}"]
    rules, view, problems = _rules(models), View(), []
    for name, text in parse_qsl(query.removeprefix("?"), keep_blank_values=True):
        if name not in rules:
            continue  # gradio has words of its own in an address, such as __theme
        kind, rule = rules[name]
        try:
            value = kind(text)
        except ValueError:
            value = text
        if problem := rule.problem(name, value):
            problems += [sentence[:300] for sentence in problem]
        else:
            view = replace(view, **{name: value})
    return view, problems


def _rules(models: Collection[str]) -> dict[str, tuple[type, Expected]]:
    def one_of(names: Collection[str]) -> Expected:
        return Expected("one of " + ", ".join(names), lambda value: value in names)

    solver_config: dict[str, tuple[type, Any]] = {
        "solver": (str, one_of(list(SOLVERS))),
        "steps": (int, integer(1, MOST_STEPS)),
        "horizon": (float, real(above=0, maximum=MOST_HORIZON)),
    }
    head = Expected(
        "mean, rollout or the number of a head",
        lambda value: value in ("mean", "rollout") or (value.isascii() and value.isdigit() and 0 < int(value) < 1000),
    )
    return {
        "picture": (str, one_of(list(DRAWINGS))),
        "model": (str, one_of(models)),
        "other": (str, one_of(models)),
        **solver_config,
        **{f"other_{name}": rule for name, rule in solver_config.items()},
        "t": (float, real(minimum=0, maximum=2)),
        "head": (str, head),
        "mass": (float, real(above=0, maximum=1)),
        "row": (int, integer(0, 1000)),
        "column": (int, integer(0, 1000)),
        "kind": (str, one_of(KINDS)),
    }
