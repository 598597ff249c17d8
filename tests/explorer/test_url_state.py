"""A query string -> UrlState."""

import random
from dataclasses import fields
from urllib.parse import quote, urlencode

import pytest

from odevit.analysis.perturbation import KINDS
from odevit.core.base import SOLVERS
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.url_state import STEP_LIMIT, UrlState, parse_query

MODELS = ["cifar10", "runs/my run & co", "checkpoints/ü?=#"]


def random_state(seed):
    """A valid state."""
    chance = random.Random(seed)
    maybe = lambda value: value if chance.random() < 0.7 else None  # noqa: E731
    solver_config = {
        f"{prefix}{name}": maybe(value)
        for prefix in ("", "other_")
        for name, value in {
            "solver": chance.choice(list(SOLVERS)),
            "steps": chance.randint(1, STEP_LIMIT),
            "horizon": chance.uniform(0.1, 100),
        }.items()
    }
    return UrlState(
        picture=chance.choice(list(DRAWINGS)),
        model=maybe(chance.choice(MODELS)),
        other=maybe(chance.choice(MODELS)),
        t=chance.uniform(0, 2),
        head=chance.choice(["mean", "rollout", "1", "12"]),
        mass=chance.uniform(0.01, 1),
        row=maybe(chance.randint(0, 20)),
        column=maybe(chance.randint(0, 20)),
        kind=chance.choice(KINDS),
        **solver_config,
    )


@pytest.mark.parametrize("seed", range(20))
def test_parse_query_reads_every_setting(seed):
    state = random_state(seed)
    query = urlencode({name: value for name, value in vars(state).items() if value is not None})
    assert parse_query("?" + query, MODELS) == (state, [])


def test_an_empty_query_is_the_default_state():
    assert parse_query("", MODELS) == (UrlState(), [])


HOSTILE = [
    "",
    "../../etc/passwd",
    "/etc/passwd",
    "<script>alert(1)</script>",
    "nan",
    "inf",
    "-1",
    "1e999",
    "\0",
    "9" * 400,
]
HOSTILE += ["²", "１２", "None", "[]", "%", "a" * 1000]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", [field.name for field in fields(UrlState)])
def test_parse_query_ignores_and_names_hostile_values(field, value):
    state, problems = parse_query(f"?{field}={quote(value)}", MODELS)
    if (field, value) == ("head", "１２"):
        assert state.head == "mean"
    assert state == UrlState() or getattr(state, field) != getattr(UrlState(), field)
    assert len(problems) == (state == UrlState())
    assert all(field in problem and len(problem) <= 300 for problem in problems)
    assert getattr(state, field) != value, "none of these is anything to show"


def test_parse_query_keeps_valid_settings_beside_invalid_ones():
    state, problems = parse_query("?model=nowhere&steps=24&t=0.5&unknown=1&__theme=dark", MODELS)
    assert (state.steps, state.t, state.model) == (24, 0.5, None)
    assert len(problems) == 1


def test_parse_query_ignores_a_query_that_is_too_long():
    state, problems = parse_query("?steps=3&x=" + "a" * 10_000, MODELS)
    assert state == UrlState()
    assert "was ignored" in problems[0]
