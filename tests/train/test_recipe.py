"""Recipes compose, and say everything that is wrong with them."""

import pytest
import torch

from odevit.core.base import DEPTHS
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.distill.alignment import Alignment
from odevit.distill.distill_task import reference_recipe
from odevit.distill.distillation import compose_distillation
from odevit.errors import ConfigError
from odevit.train.compose import compose_recipe, options
from odevit.train.recipe import Recipe
from tests.tiny import tiny_model


@pytest.mark.parametrize("name", options("experiment"))
def test_every_experiment_is_a_valid_recipe(name):
    compose = compose_distillation if "distill" in name else compose_recipe
    recipe = compose([f"experiment={name}"])
    given_teacher = compose([f"experiment={name}", "name="]).name == recipe.name  # named after teacher and data
    assert recipe.name == name or given_teacher
    assert recipe.problems() == []


@pytest.mark.parametrize("group", ["model", "data", "train"])
def test_every_file_of_every_group_composes(group):
    for name in options(group):
        needed = {"custom": ["data.source=digits"], "finetune": ["teacher=somewhere"]}
        words = [f"{group}={name}", *needed.get(name, [])]
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
    dropouts = (config.attention_dropout, config.hidden_dropout, config.output_dropout, config.embedding_dropout)
    assert dropouts == (0.3, 0.3, 0.3, 0.0)
    augmentation = recipe.data.augmentation
    assert (augmentation.crop, augmentation.flip, augmentation.mix_probability) == (0, False, 0.0)


@pytest.mark.parametrize("source", ["../some folder/cifar", "owner/name", "/data/it's"])
def test_data_takes_folders_and_hub_ids(source):
    assert compose_recipe([f"data={source}"]).data.source == source


def test_overrides_reach_the_model():
    recipe = compose_recipe(["model.leak=0", "model.final_norm=none", "model.steps=5"])
    settings = recipe.model_settings()
    assert (settings["leak"], settings["final_norm"], settings["steps"]) == (0, None, 5)


def test_a_recipe_leaves_nothing_in_the_next():
    """The files are put together once; what is typed, and what becomes of a recipe, is its own."""
    untouched = compose_recipe()
    first = compose_recipe(["train.epochs=77", "model.leak=0.125"])
    first.train.steps.append(5)
    assert (first.train.epochs, first.model_settings()["leak"]) == (77, 0.125)
    assert compose_recipe() == untouched


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
    assert (recipe.objective.cls, recipe.objective.patches, recipe.objective.jasmin) == (6.0, 0.0, 1.0)
    assert recipe.objective.jasmin_k == 10
    student = recipe.student
    assert (student.attention_dropout, student.hidden_dropout, student.output_dropout) == (0.1, 0.1, 0.1)
    assert recipe.alignment.kind == "distance"
    # The distances that the paper's code comes with, which it divides by 30.
    released = (19.99, 12.95, 5.353, 4.867, 4.815, 4.521, 5.211, 5.697, 6.131, 6.052, 6.461, 53.51)
    shares = Alignment("distance", released, recipe.alignment.temperature).shares
    assert shares == pytest.approx((torch.tensor(released) / 30).softmax(0).tolist(), rel=1e-2)


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


def test_what_has_no_gradient_is_not_trained(monkeypatch):
    assert compose_recipe(["depth=equilibrium", "depth.search=broyden", "depth.gradient=phantom"]).problems() == []
    monkeypatch.setattr(DEPTHS["equilibrium"], "trainable", False)
    [problem] = compose_recipe(["model.depth=equilibrium"]).problems()
    assert "train with model.depth=ode or tied" in problem


def test_labels_are_counted_for_whoever_learns_from_them():
    recipe = compose_distillation(["experiment=distill/few-labels"])
    assert recipe.problems() == []
    scratch, teacher = (reference_recipe(recipe, part) for part in ("scratch", "teacher"))
    assert (scratch.data.share, teacher.data.share) == (0.08, 1.0)
    for words, sentence in (
        (["labels=0"], "labels=0.0; expected a share in (0, 1]"),
        (
            ["labels=0.5", "compare=false"],
            'labels= is for the student from scratch of compare=true, teacher=""; leave it out',
        ),
        (["data.share=2"], "data.share=2.0; expected a share in (0, 1]"),
    ):
        assert compose_distillation(words).problems() == [sentence]


@pytest.mark.parametrize("name", options("system"))
def test_every_system_is_a_sound_recipe_that_draws_what_its_own_file_says(name):
    """Whatever the training would draw: ways are a part of the system. What is typed comes last, if there are any."""
    recipe = compose_recipe([f"system={name}", "experiment=fast/cifar10", "data=digits"])
    recipe.check()
    assert (recipe.train.steps == [6, 12, 12, 12, 24, 24]) is (name == "none")
    if DEPTHS[recipe.model_settings().get("depth", "ode")].has_trajectory:
        assert compose_recipe([f"system={name}", "train.steps=[3]"]).train.steps == [3]
    else:
        with pytest.raises(ConfigError, match=r"train.steps: depth=[\w-]+ has no ODE trajectory.*; leave it out"):
            compose_recipe([f"system={name}", "train.steps=[3]"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["teacher=X", "model.image_size=96", "depth=tied"], "depth: teacher='X' keeps its shape"),
        (["teacher=X", "train.steps=[3]"], "train.steps: a pretrained ViT has no solver to sample; leave it out"),
        (["teacher=X", "init_from=Y"], "init_from: training starts from the teacher"),
        (["system=tied", "train.solvers=[rk4]"], "train.solvers: depth=tied has no ODE trajectory"),
    ],
)
def test_what_nobody_would_hear_is_refused(words, said):
    with pytest.raises(ConfigError) as refused:
        compose_recipe(words)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "word",
    ["init_from=X", "head_only=true", "train.layer_decay=0.5", "model.hidden_size=64", "depth=tied"],
)
def test_a_student_does_not_hear_of_other_trainings(word):
    with pytest.raises(ConfigError, match=rf"{word.partition('=')[0]}: .*; leave it out"):
        compose_distillation(["teacher=X", word])
    assert compose_distillation(["model.hidden_size=64"]).model.hidden_size == 64, "a teacher that is trained here"


@pytest.mark.parametrize("word", ["unlabelled=X", "train.horizons=[2]", "phases=default", "knots=2", "student.leak=1"])
def test_the_student_of_an_equation_hears_of_steps_alone(word, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"{word.partition('=')[0]}: .*; leave it out"):
        compose_distillation([f"teacher={tmp_path}", word])
    assert compose_distillation([f"teacher={tmp_path}", "phases=none", "train.steps=[2]"]).train.steps == [2]


def test_a_bound_stops_no_training_in_phases():
    assert any(
        "stopping.bound has no meaning with phases" in problem
        for problem in compose_distillation(["teacher=X", "stopping.bound=curvature"]).problems()
    )


def test_the_home_folder_may_be_typed(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compose_recipe(["teacher=~/vit"]).teacher == str(tmp_path / "vit")
    assert compose_recipe(["init_from=~/run"]).init_from == str(tmp_path / "run")
