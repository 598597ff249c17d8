"""Recipes of 0.2 are read with the keys of today."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from odevit.cli import find_command
from odevit.cli.recipes import flatten
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.distill.phase import Phase
from odevit.train.compose import compose_as, compose_recipe, types_of
from odevit.train.folder import read_recipe
from odevit.train.recipe_keys import REMOVED, current_key, current_overrides, current_recipe, removed_problems

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data.cache", "cache"),
        ("train.own", "train.own_share"),
        ("objective.meeting", "objective.match"),
        ("phases.forced.forced", "phases.layerwise.teacher_forcing"),
        ("phases.walk.left", "phases.rollout.final_rate"),
        ("phases.any_way.ways", "phases.random_solver.solver_configs"),
        ("phases.any_way.objective.meeting", "phases.random_solver.objective.match"),
        ("phases.any_way", "phases.random_solver"),
        ("train.epochs", "train.epochs"),
        ("phases", "phases"),
    ],
)
def test_current_key_gives_the_new_name(old, new):
    assert current_key(old) == new
    assert current_key(new) == new, "a new name stays as it is"
    assert current_overrides([f"{old}=a=b"]) == [f"{new}=a=b"]


def test_current_recipe_moves_values_and_drops_removed_keys_at_their_default():
    old = {
        "data": {"source": "digits", "cache": "decoded", "split_seed": 0},
        "train": {"own": 0.4, "patience": 0, "workers": 4},
        "phases": {"walk": {"left": 0.75, "objective": {"meeting": "exact"}}},
    }
    assert current_recipe(old) == {
        "data": {"source": "digits"},
        "cache": "decoded",
        "train": {"own_share": 0.4, "workers": 4},
        "phases": {"rollout": {"final_rate": 0.75, "objective": {"match": "exact"}}},
    }
    assert current_recipe({"phases": {}}) == {"phases": {}}


def test_removed_problems_names_the_key_and_its_default():
    [problem] = removed_problems(current_recipe({"train": {"patience": 5, "workers": 2}}))
    assert problem.startswith("train.patience: this option was removed after version 0.2; only its default 0 is read")
    assert removed_problems({"train": {"patience": 5}}, "data.") == []


def test_no_removed_key_exists_today():
    keys = types_of(DistillRecipe, OmegaConf.structured(DistillRecipe()))
    assert not REMOVED.keys() & keys.keys()
    assert {field.name for field in fields(Phase)} >= {"teacher_forcing", "solver_configs", "final_rate"}


def test_removed_keys_of_students_and_stopping_are_read_at_their_default_only():
    default = {"student": {"depth": "ode", "depth_options": None, "attention_options": None}}
    default |= {"stopping": {"radius": 10.0, "error": "norm"}}
    assert current_recipe(default) == {}
    other = {"student": {"depth": "equilibrium"}, "stopping": {"error": "mse"}}
    sentences = removed_problems(current_recipe(other))
    assert [sentence.partition(":")[0] for sentence in sentences] == ["student.depth", "stopping.error"]


@pytest.mark.parametrize(
    "override",
    [
        "student.depth=stacked",
        "stopping.radius=2",
        "objective.attention_kl=1",
        "train.jasmin_k=3",
        "train.solvers=[rk4]",
    ],
)
def test_compose_distillation_refuses_a_key_that_is_gone(override):
    with pytest.raises(ValueError, match=re.escape(override.partition("=")[0]) + ".*; leave it out"):
        compose_distillation(["teacher=X", override])


@pytest.mark.parametrize("key", ["model.bias", "model.num_register_tokens"])
def test_compose_refuses_keys_that_only_a_comparison_sets(key):
    with pytest.raises(ValueError, match=f"{key}: odevit distill sets it for compare=true; .*; leave it out"):
        compose_recipe([f"{key}=1"])


@pytest.mark.parametrize(("verb", "most"), [("train", 96), ("distill", 120)])
def test_help_lists_no_more_keys_than_are_used(verb, most):
    kind = find_command(verb).recipe
    assert len(flatten(compose_as(kind)).keys() - kind.unused_overrides({}).keys()) <= most


def test_old_overrides_set_the_new_keys():
    assert compose_recipe(["train.own=0.4", "data.cache=decoded"]).train.own_share == 0.4
    words = ["teacher=FOLDER", "data=digits", "objective.meeting=nearest", "phases.any_way.ways=[own]"]
    recipe = compose_distillation(words)
    assert recipe.objective.match == "nearest"
    assert recipe.phases["random_solver"].solver_configs == ["own"]


def test_compose_refuses_a_removed_key_in_a_sentence():
    with pytest.raises(ValueError, match=r"train.patience=3: this option was removed after version 0.2; leave it out"):
        compose_recipe(["train.patience=3"])


@pytest.mark.parametrize("file", sorted((ROOT / "records").rglob("recipe*.yaml")), ids=lambda file: file.parent.name)
def test_every_record_has_only_keys_of_today(file, tmp_path):
    (tmp_path / "recipe.yaml").write_text(file.read_text())
    content = read_recipe(tmp_path)
    assert removed_problems(content) == []
    recipe = DistillRecipe(phases={name: Phase() for name in content.get("phases", {})})
    allowed = types_of(DistillRecipe, OmegaConf.structured(recipe)).keys()
    groups = {"model.depth_options", "model.attention_options", "student.depth_options", "student.attention_options"}
    flat = set(_leaves(content, groups))
    assert flat <= allowed, f"keys that nothing reads: {sorted(flat - allowed)}"


def _leaves(values, whole, prefix=""):
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name not in whole:
            yield from _leaves(value, whole, f"{name}.")
        else:
            yield name


def test_checkpoints_and_the_bundled_model_have_recipes_that_are_read():
    files = [*(ROOT / "checkpoints").rglob("recipe.yaml"), *(ROOT / "src/odevit").rglob("recipe.yaml")]
    for file in files:
        assert removed_problems(read_recipe(file.parent)) == []
        assert yaml.safe_load(file.read_text())
    assert len(files) >= 2
