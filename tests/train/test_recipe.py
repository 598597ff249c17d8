"""Recipes compose, and say everything that is wrong with them."""

import pytest

from odevit.distill.distillation import compose_distillation
from odevit.errors import ConfigError
from odevit.model import OdeViTConfig
from odevit.train import Recipe
from odevit.train.compose import compose_recipe, options


@pytest.mark.parametrize("name", options("experiment"))
def test_every_experiment_is_a_valid_recipe(name):
    compose = compose_distillation if "distill" in name else compose_recipe
    recipe = compose([f"experiment={name}"])
    assert recipe.name == name
    assert recipe.problems() == []


@pytest.mark.parametrize("group", ["model", "data", "train"])
def test_every_file_of_every_group_composes(group):
    for name in options(group):
        words = [f"{group}={name}"] + (["data.source=digits"] if name == "custom" else [])
        assert compose_recipe(words).problems() == []


def test_the_default_is_digits():
    recipe = compose_recipe()
    assert recipe.data.source == "digits"
    assert str(recipe.folder) == "runs/digits-0"


def test_the_papers_recipe_is_the_papers():
    recipe = compose_recipe(["experiment=paper/cifar10-scratch"])
    t, config = recipe.train, OdeViTConfig(**recipe.model_settings())
    assert (t.epochs, t.batch_size, t.learning_rate, t.weight_decay, t.warmup) == (300, 64, 1e-4, 0.05, 0.1)
    assert (t.schedule, t.cycles, t.optimizer) == ("cosine_with_restarts", 10, "adamw")
    assert (config.image_size, config.patch_size, config.steps, config.solver) == (224, 16, 24, "euler")
    assert (config.hidden_size, config.leak, config.norm) == (192, 0.0, "center")
    augmentation = recipe.data.augmentation
    assert (augmentation.crop, augmentation.flip, augmentation.mix_probability) == (0, False, 0.0)


@pytest.mark.parametrize("source", ["../some folder/cifar", "owner/name", "/data/it's"])
def test_data_takes_folders_and_hub_ids(source):
    assert compose_recipe([f"data={source}"]).data.source == source


def test_overrides_reach_the_model():
    recipe = compose_recipe(["model.leak=0", "model.final_norm=none", "model.steps=5"])
    settings = recipe.model_settings()
    assert (settings["leak"], settings["final_norm"], settings["steps"]) == (0, None, 5)


def test_unknown_keys_are_all_reported_with_the_nearest_match():
    with pytest.raises(ConfigError) as caught:
        compose_recipe(["train.epoch=3", "seed=x", "modle.leak=0"])
    problems = caught.value.problems
    assert len(problems) == 3
    assert "unknown key 'train.epoch'" in problems[0]
    assert "Did you mean 'train.epochs'" in problems[0]
    assert "seed=x" in problems[1]
    assert "Did you mean 'model.leak'" in problems[2]


def test_unknown_experiments_list_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown experiment 'fast/cifar'; known: .*fast/cifar10"):
        compose_recipe(["experiment=fast/cifar"])


def test_problems_of_a_recipe_are_reported_together():
    recipe = Recipe()
    recipe.train.optimizer = "adam"
    recipe.train.epochs = 0
    recipe.train.batch_size, recipe.train.accumulate = 10, 3
    recipe.model.solver = "hun"
    recipe.resume = recipe.overwrite = True
    with pytest.raises(ConfigError) as caught:
        recipe.check()
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    for part in ("Did you mean 'adamw'", "train.epochs=0", "does not divide", "Did you mean 'heun'", "contradict"):
        assert part in text


def test_no_accumulation_at_all_is_a_problem_and_not_a_crash():
    recipe = Recipe()
    recipe.train.accumulate = 0
    assert recipe.problems() == ["train.accumulate=0; expected a whole number, at least 1"]


def test_the_papers_distillation_is_the_papers():
    recipe = compose_distillation(["experiment=paper/distill-cifar100"])
    assert (recipe.student.steps, recipe.student.solver, recipe.student.norm) == (24, "euler", "center")
    assert (recipe.objective.cls, recipe.objective.patches, recipe.objective.jasmin) == (1.0, 0.0, 1.0)
    assert recipe.alignment.kind == "distance"


def test_the_solver_follows_the_leak_unless_it_is_given():
    assert OdeViTConfig.preset("digits").solver == "exponential_euler"
    for words, solver in (
        (["student.leak=1"], "exponential_euler"),
        (["student.leak=0"], "lie_trotter"),
        (["student.leak=1", "student.solver=heun"], "heun"),
        (["experiment=distill/cifar100"], "lie_trotter"),
    ):
        assert compose_distillation(words).student_config().solver == solver


def test_problems_of_a_distillation_are_reported_together():
    recipe = compose_distillation(["alignment.kind=arcs", "student.norm=centre", "objective.path=none"])
    with pytest.raises(ConfigError) as caught:
        recipe.check()
    text = str(caught.value)
    for part in ("Did you mean 'arc'", "Did you mean 'center'", "objective.path='none'"):
        assert part in text


def test_replayed_steps_and_features_on_disk_exclude_each_other():
    words = ["features=somewhere", "train.capture=true", "data.augmentation.affine=0", "data.augmentation.mixup=0"]
    recipe = compose_distillation([*words, "data.augmentation.mix_probability=0"])
    assert [problem for problem in recipe.problems() if "train.capture=false" in problem]


def test_an_equilibrium_is_not_trained():
    [problem] = compose_recipe(["model.depth=equilibrium"]).problems()
    assert "train with model.depth=ode" in problem
