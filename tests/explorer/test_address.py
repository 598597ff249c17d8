"""View <-> query string."""

import random
from dataclasses import fields
from urllib.parse import quote

import pytest

from odevit.analysis.perturbation import KINDS
from odevit.core.base import SOLVERS
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.url_state import MOST_STEPS, View, read_query

MODELS = ["cifar10", "runs/my run & co", "checkpoints/ü?=#"]


def drawn(seed):
    """Some view of those that there are."""
    chance = random.Random(seed)
    maybe = lambda value: value if chance.random() < 0.7 else None  # noqa: E731
    solver_config = {
        f"{prefix}{name}": maybe(value)
        for prefix in ("", "other_")
        for name, value in {
            "solver": chance.choice(list(SOLVERS)),
            "steps": chance.randint(1, MOST_STEPS),
            "horizon": chance.uniform(0.1, 100),
        }.items()
    }
    return View(
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
def test_there_and_back(seed):
    view = drawn(seed)
    assert read_query("?" + view.query(), MODELS) == (view, [])


def test_what_is_usual_is_in_no_address():
    assert View().query() == ""
    assert read_query("", MODELS) == (View(), [])


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
@pytest.mark.parametrize("field", [field.name for field in fields(View)])
def test_a_hostile_value_is_left_out_and_named(field, value):
    view, problems = read_query(f"?{field}={quote(value)}", MODELS)
    if (field, value) == ("head", "１２"):
        assert view.head == "mean"
    assert view == View() or getattr(view, field) != getattr(View(), field)
    assert len(problems) == (view == View())
    assert all(field in problem and len(problem) <= 300 for problem in problems)
    assert getattr(view, field) != value, "none of these is anything to show"


def test_good_parts_survive_bad_ones():
    view, problems = read_query("?model=nowhere&steps=24&t=0.5&unknown=1&__theme=dark", MODELS)
    assert (view.steps, view.t, view.model) == (24, 0.5, None)
    assert len(problems) == 1


def test_an_endless_address_is_not_read():
    view, problems = read_query("?steps=3&x=" + "a" * 10_000, MODELS)
    assert view == View()
    assert "was not read" in problems[0]
