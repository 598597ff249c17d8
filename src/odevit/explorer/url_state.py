"""?model=cifar10&steps=24&t=0.5 -> UrlState: what the page shows, read from the query of a shared URL."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from odevit.analysis.perturbation import KINDS
from odevit.core.base import SOLVERS
from odevit.errors import Expected, integer, one_of, real
from odevit.explorer.drawings import DRAWINGS

STEP_LIMIT = 128
HORIZON_LIMIT = 100.0
MAX_LENGTH = 2000
"""Characters of a query; longer ones are ignored."""


SOLVER_RULES: dict[str, tuple[type, Expected]] = {
    "solver": (str, one_of(*SOLVERS)),
    "steps": (int, integer(1, STEP_LIMIT)),
    "horizon": (float, real(above=0, maximum=HORIZON_LIMIT)),
}
HEAD = Expected(
    "mean, rollout or the number of a head",
    lambda value: value in ("mean", "rollout") or (value.isascii() and value.isdigit() and 0 < int(value) < 1000),
)
RULES: dict[str, tuple[type, Expected]] = {
    "picture": (str, one_of(*DRAWINGS)),
    **SOLVER_RULES,
    **{f"other_{name}": rule for name, rule in SOLVER_RULES.items()},
    "t": (float, real(minimum=0, maximum=2)),
    "head": (str, HEAD),
    "mass": (float, real(above=0, maximum=1)),
    "row": (int, integer(0, 1000)),
    "column": (int, integer(0, 1000)),
    "kind": (str, one_of(*KINDS)),
}
"""{key of a query: (its type, its rule)}, except the names of models, which are found at run time."""


@dataclass(frozen=True)
class UrlState:
    """What the page shows. None stands for the model's own setting.

    Args:
        picture: the name of a drawing. Uploaded images stay in the browser and are never part of a URL.
        model, solver, steps, horizon: the model and its solver config.
        other: a second model, shown beside the first; other_solver, other_steps and other_horizon are its settings.
        t: the time that is shown, in horizons.
        head: `mean`, `rollout`, or the number of a head from 1.
        mass: share of the attention that is outlined.
        row, column: the patch that is perturbed.
        kind: `token` or `picture`, what of the patch is perturbed.
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


def parse_query(query: str, models: Collection[str]) -> tuple[UrlState, list[str]]:
    """The state that a query describes, and a message for each part of it that is invalid and ignored."""
    if len(query) > MAX_LENGTH:
        return UrlState(), [f"the query has {len(query):,} characters and was ignored; expected at most {MAX_LENGTH:,}"]
    rules = RULES | {name: (str, one_of(*models)) for name in ("model", "other")}
    state, problems = UrlState(), []
    for name, text in parse_qsl(query.removeprefix("?"), keep_blank_values=True):
        if name not in rules:
            continue  # gradio has keys of its own, such as __theme
        kind, rule = rules[name]
        try:
            value = kind(text)
        except ValueError:
            value = text
        if problem := rule.problem(name, value):
            problems += [message[:300] for message in problem]
        else:
            state = replace(state, **{name: value})
    return state, problems
