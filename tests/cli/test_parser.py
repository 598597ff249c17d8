"""Words of the command line become arguments typed as the signature says; one error lists all problems."""

import os
from collections.abc import Sequence

import pytest

from odevit.cli.parser import Command, find_kinds, parse_docstring, parse_value, print_table
from odevit.errors import ConfigError
from odevit_command import print_page


def paint(
    images: Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
    steps: int | Sequence[int] | None = None,
    solver: str | Sequence[str] | None = None,
    speed: float = 1.0,
    limit: int | None = 1000,
    dry: bool = False,
    sizes: dict[str, int] | None = None,
) -> list[str]:
    """Paint images.

    Twice, if need be.

    Args:
        images: paths.
        out: a folder, or
            several lines about one.
        steps, solver: how.
        speed: of the brush.
        limit: at most.
        dry: without paint.
        sizes: not for the command line.
    """
    return list(map(str, images))


def measure(run: str, *, seed: int = 0) -> str:
    """Measure."""
    return run


PAINT = Command("paint", paint, print, ["odevit paint a.png"])
MEASURE = Command("measure", measure, print, ["odevit measure RUN"])


@pytest.mark.parametrize("name", ["nan", "1e3", "true", "none", "inf", "1,2", "007", ""])
def test_parse_keeps_text_for_a_string_parameter(name):
    assert PAINT.parse(["a.png", f"out={name}"])[1] == {"out": name}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("steps=4", 4),
        ("steps=4,8", [4, 8]),
        ("steps=4,", [4]),
        ("steps=none", None),
        ("solver=rk4", "rk4"),
        ("solver=rk4,1e3", ["rk4", "1e3"]),
        ("speed=2", 2.0),
        ("speed=1e-3", 1e-3),
        ("limit=None", None),
        ("dry=true", True),
        ("dry=False", False),
    ],
)
def test_parse_gives_values_the_type_of_their_parameter(word, value):
    (parsed,) = PAINT.parse(["a.png", word])[1].values()
    assert parsed == value
    assert type(parsed) is type(value)


def test_parse_takes_words_without_a_key_as_the_first_argument():
    assert PAINT.parse(["a.png", "some/where=x/b.png", "dry=true"]) == (
        [["a.png", "some/where=x/b.png"]],
        {"dry": True},
    )
    assert MEASURE.parse(["runs/1e3"]) == (["runs/1e3"], {})


def test_parse_reports_all_problems_in_one_error():
    with pytest.raises(ConfigError) as caught:
        PAINT.parse(["step=4", "steps=four", "speed=fast", "limit=2.5", "dry=1", "sizes=1"])
    problems = caught.value.problems
    assert len(problems) == 7
    assert "takes one image or more" in problems[0]
    assert "odevit paint a.png" in problems[0]
    assert "Did you mean 'steps'" in problems[1]
    assert problems[2] == "steps=four; expected a whole number, or several separated by commas"
    assert problems[3] == "speed=fast; expected a number"
    assert problems[4] == "limit=2.5; expected a whole number"
    assert problems[5] == "dry=1; expected true or false"
    assert "unknown key 'sizes'" in problems[6], "a type that no word can have is for Python alone"


@pytest.mark.parametrize("words", [[], ["a", "b"]])
def test_parse_refuses_no_run_or_two_runs(words):
    with pytest.raises(ConfigError, match="measure takes one run"):
        MEASURE.parse(words)


def test_parse_value_tries_the_strictest_type_first():
    assert parse_value("3", find_kinds(int | float | str)) == 3
    assert parse_value("3.5", find_kinds(int | float | str)) == 3.5
    assert parse_value("x", find_kinds(int | float | str)) == "x"
    assert not find_kinds(dict[str, int] | None)


def test_help_shows_every_key_with_its_default_and_meaning(capsys):
    print_page(PAINT.help())
    text = capsys.readouterr().out
    assert text.startswith("odevit paint IMAGE... [key=value ...]\n\nPaint images.\n\nTwice, if need be.\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "IMAGE... paths.",
        "out= a folder, or several lines about one.",
        "steps= solver= how.",
        "speed=1.0 of the brush.",
        "limit=1000 at most.",
        "dry=False without paint.",
        "odevit paint a.png",
    ):
        assert line in lines
    assert "sizes" not in text
    assert parse_docstring(paint)[1][1] == (["out"], "a folder, or several lines about one.")


def test_print_table_wraps_long_cells_in_their_column(capsys):
    print_table([("a", "word " * 30), ("k" * 40, "[meaning]")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert max(map(len, (first, second, third))) <= 120
    assert second.index("word") == first.index("word") == third.index("[meaning]")
    assert third.split() == ["k" * 40, "[meaning]"]
