"""Every key of every verb, with values that it cannot have: one sentence that names the key, or a right result."""

import re
import sys
import types
import typing
from dataclasses import is_dataclass

import pytest

from odevit.cli import NAMES, find_command
from odevit.cli.parser import find_kinds
from odevit.cli.recipes import RecipeCommand
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.distill.objective import DistillObjective
from odevit.distill.phase import Phase
from odevit.surgery.configuration_student import OdeStudentConfig

BASE = {
    "train": ["model=digits", "data=pictures", "train=digits", "train.batch_size=4", "out=out", "device=cpu"],
    "distill": ["data=pictures", "train=distill-digits", "phases=none", "train.batch_size=4"],
    "eval": ["run", "data=pictures", "device=cpu"],
    "analyze": ["run", "data=pictures", "device=cpu", "out=out"],
    "explore": ["picture.png", "model=run"],
    "predict": ["picture.png", "model=run"],
    "info": [],
    "serve": ["model=run", "port=0"],
    "compare": ["systems=vit", "seeds=0", "data=pictures", "updates=1", "device=cpu", "out=out", "train.batch_size=4"],
}
"""A command of each verb that works."""
BASE["train"] += ["model.hidden_size=8", "model.num_attention_heads=2"]
BASE["distill"] += [
    "device=cpu",
    "teacher=teacher",
    "compare=false",
    "teacher_train.batch_size=4",
    "alignment.images=8",
]
PHASED = ["phases=default", "train.steps=[]", "train.horizons=[]"]
"""What a distillation in phases takes in addition."""

IMPOSSIBLE = {bool: ["abc", "7"], int: ["abc", "nan", "1.5"], float: ["abc", "nan", "inf"], list: ["abc", "[nan]"]}
"""What must be refused, by type."""
NEGATIVE = {int: ["-1"], float: ["-1"], list: ["[-1]"]}
"""What must be refused, except for a few keys."""
STRANGE = {
    bool: ["0"],
    int: ["0", "1000000000000"],
    float: ["0", "1e300"],
    str: ["", "abc", "nan", "1e3", "../outside", "/proc/nowhere", "text.txt", "a=b"],
    list: ["[]", "[0]", "[1000000000000]"],
}
"""What may be refused or taken, but not with a traceback."""


def given_keys(verb):
    """{key: its types} of a verb: from the signature of its function, or from the dataclass of its recipe."""
    keys = schema(verb.recipe()) if isinstance(verb, RecipeCommand) else verb.arguments()[1]
    return keys | (schema(Phase(), "phases.rollout.") if verb.name == "distill" else {})


def schema(recipe, prefix=""):
    keys = {}
    for name, value in vars(recipe).items():
        if is_dataclass(value):
            keys |= schema(value, f"{prefix}{name}.")
        else:
            keys[f"{prefix}{name}"] = types_of(hint_of(type(recipe), name))
    return keys


def hint_of(kind, name):
    """The type of a field; that of a model's or a student's is said by the configuration."""
    home = {
        "ModelRecipe": OdeViTConfig,
        "StudentRecipe": OdeStudentConfig,
        "PhaseObjective": type(DistillObjective()),
    }.get(kind.__name__, kind)
    for base in home.__mro__:
        if hint := vars(base).get("__annotations__", {}).get(name):
            return eval(hint, vars(sys.modules[base.__module__])) if isinstance(hint, str) else hint
    return str


def types_of(hint):
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else [hint]
    several = {list for part in parts if typing.get_origin(part) in (list, tuple)}
    return several | set().union(*(find_kinds(part) for part in parts if typing.get_origin(part) not in (list, tuple)))


def values_of(key, kinds):
    """(value, whether it must be refused) for a key of these types."""
    impossible = [value for kind in IMPOSSIBLE if kind in kinds for value in IMPOSSIBLE[kind]]
    if str in kinds:
        impossible = []
    elif {int, float} <= kinds or (list in kinds and len(kinds) > 1):
        impossible = ["abc", "nan"]  # a number of another kind is one of several
    yield from ((value, True) for value in impossible)
    for kind, values in NEGATIVE.items():
        if kind in kinds:
            yield from ((value, str not in kinds) for value in values)
    for kind, values in STRANGE.items():
        if kind in kinds:
            yield from ((value, False) for value in values)


def cases():
    """Every value of every key; but where a distillation has a key of a training, and the same rules, one will do."""
    for name in NAMES:
        for key, kinds in given_keys(find_command(name)).items():
            shared = name == "distill" and (
                key in given_keys(find_command("train")) or key.startswith("teacher_train.")
            )
            values = sorted({*values_of(key, kinds)}, key=lambda case: (not case[1], case[0]))
            for value, impossible in values[:1] if shared else values:
                yield name, key, value, impossible


CASES = list(cases())


def test_the_commands_themselves_work(typed):
    for name, words in BASE.items():
        assert not typed(name, *words, *(["overwrite=true"] if name == "distill" else [])).refused


def is_recipe(verb):
    return isinstance(find_command(verb), RecipeCommand)


@pytest.mark.parametrize(
    ("verb", "value"),
    sorted({(verb, value) for verb, _, value, impossible in CASES if impossible and is_recipe(verb)}),
)
def test_every_key_of_a_recipe_with_a_bad_value_has_its_sentence(verb, value, typed):
    """All keys that cannot have this value, at once: types first, then what a number may be."""
    left = [key for name, key, other, impossible in CASES if (name, other, impossible) == (verb, value, True)]
    while left:
        words = [*BASE[verb], *(PHASED if verb == "distill" else []), *(f"{key}={value}" for key in left)]
        with pytest.raises(ValueError, match=r"\w") as caught:
            find_command(verb).run(words)
        text = str(caught.value)
        named = [key for key in left if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text)]
        assert named, f"accepted: {left}"
        left = [key for key in left if key not in named]


@pytest.mark.filterwarnings("ignore::odevit.errors.OdeVitWarning")
@pytest.mark.parametrize(
    ("verb", "key", "value", "impossible"), [case for case in CASES if not (case[3] and is_recipe(case[0]))]
)
def test_a_bad_value_is_refused_by_the_name_of_its_key(verb, key, value, impossible, typed):
    outcome = typed(verb, *BASE[verb], *(PHASED if key.startswith("phases.") else []), f"{key}={value}")
    assert outcome.refused or not impossible, "accepted"
    if outcome.refused:
        # A name that leads nowhere is quoted as it was given.
        named = "data" if key == "data.source" else key
        assert named in outcome.message or repr(value) in outcome.message


@pytest.mark.parametrize("verb", NAMES)
def test_an_unknown_key_gets_the_nearest(verb):
    """All of them at once: an error lists every problem."""
    keys = given_keys(find_command(verb))
    with pytest.raises(ValueError, match="unknown key") as caught:
        find_command(verb).run(
            [*BASE[verb], *(PHASED if verb == "distill" else []), *(f"{key}x=1" for key in keys), "x=1"]
        )
    sentences = caught.value.problems
    assert len(sentences) == len(keys) + 1
    for key, sentence in zip(keys, sentences, strict=False):
        assert sentence.startswith(f"unknown key '{key}x'; known: ")
        assert "Did you mean" in sentence
