"""A whole run: what it leaves behind, that it survives a kill, and that it scales out."""

import itertools
import json
import math
import time
from pathlib import Path

import pytest
import torch
from benchmarks.collect import collect
from PIL import Image
from safetensors.torch import load_file
from transformers import pipeline

from odevit import OdeViTForImageClassification, load
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError
from odevit.train.classifier import ClassifierTask, train_recipe
from odevit.train.compose import compose_recipe
from odevit.train.evaluate import evaluate_batches
from odevit.train.folder import COMPLETE, RunFolder, last_complete
from odevit.train.recipe import Recipe
from odevit.train.record import read_metrics
from odevit.train.runner import make_trainer
from odevit.train.splits import evaluation_batches, load_run_data
from odevit.train.trainer import DivergedError
from tests.train.start import begin, finish, together, words

# Dropout, drawn integrations and averaging on, so that everything random has to be resumed too.
SMALL = [
    "train.epochs=4",
    "train.evaluate_every=1",
    "train.log_every=1",
    "train.batch_size=128",
    "model.hidden_size=16",
    "model.num_attention_heads=2",
    "model.hidden_dropout=0.1",
    "model.attention_dropout=0.1",
    "device=cpu",
]


def run(out, *words, number=1):
    log, arguments = out.with_suffix(".log"), [f"out={out}", *SMALL, *words]
    finish(together(log, arguments, number) if number > 1 else [begin(log, arguments)], log)
    return out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "finished")


def losses(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]


def test_a_run_can_be_shorter_than_an_epoch(tmp_path):
    """Ten updates to an epoch; seven are asked for, and the cosine ends with them."""
    lines = read_metrics(run(tmp_path / "short", "train.updates=7", "train.warmup=0") / "metrics.jsonl")
    assert [line["step"] for line in lines if "eval_accuracy" in line] == [7]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert len(rates) == 7
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1 * rates[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_log_tells_what_was_spent_and_mixed_precision_is_what_it_says(precision, tmp_path):
    """An adaptive solver decides for itself: tolerance and evaluations stand beside every loss, and vary."""
    adaptive = [
        "system=neural-ode",
        "train.updates=6",
        "model.hidden_dropout=0",
        "model.attention_dropout=0",
        "train.ema=0",
    ]
    folder = run(tmp_path / precision, *adaptive, f"train.precision={precision}")
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
    assert [line["nfe"] > 6 and line["rtol"] > 0 for line in lines] == [True] * 6
    task = ClassifierTask(compose_recipe([*SMALL, *adaptive, f"train.precision={precision}", f"out={tmp_path / 'x'}"]))
    task.build()
    batch, trainer, dtypes = next(iter(task.batches)), make_trainer(task), []
    task.network.classifier.register_forward_hook(lambda module, inputs, logits: dtypes.append(logits.dtype))
    trainer.compute_loss(task.network, batch)
    assert dtypes == [{"fp32": torch.float32, "bf16": torch.bfloat16}[precision]]


def test_what_a_run_leaves_behind(finished):
    assert {path.name for path in finished.iterdir()} == {
        "model.safetensors",
        "config.json",
        "preprocessor_config.json",
        "recipe.yaml",
        "metrics.jsonl",
        "curves.png",
        "record.json",
        "README.md",
        "manifest.json",
        "odevit_classes.py",
    }
    assert {*RunFolder(finished).registered, "manifest.json"} == {path.name for path in finished.iterdir()}
    record = json.loads((finished / "record.json").read_text())
    for key in ("name", "command", "data", "params", "nfe", "epochs", "seconds", "device", "versions"):
        assert key in record
    assert record["command"].startswith("odevit train out=")
    assert 0 <= record["top1"] <= record["top3"] <= record["top5"] <= 1
    card = (finished / "README.md").read_text()
    assert f"{record['params']:,}" in card
    assert f"{record['top1']:.2%}" in card
    assert f"% of {record['images']} images" in card


def test_runs_become_a_record(finished, tmp_path):
    for seed, top1 in ((0, 0.5), (1, 0.7)):
        run = json.loads((finished / "record.json").read_text())
        run["seeds"][0] |= {"seed": seed, "top1": top1}
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "record.json").write_text(json.dumps(run))
        (tmp_path / str(seed) / "recipe.yaml").write_text("{}")
    runs = [tmp_path / "0", tmp_path / "1"]
    record = collect(runs, tmp_path / "together")
    assert record["top1"] == pytest.approx(0.6)
    assert record["top1_spread"] == pytest.approx(2**0.5 / 10)
    assert record["name"] == "together"
    assert files_of(tmp_path / "together") == {"record.json", "seed0-recipe.yaml", "seed1-recipe.yaml"}
    written = [json.loads((run / "record.json").read_text()) for run in runs]

    def changed(**by):
        for n, (run, record) in enumerate(zip(runs, written, strict=True)):
            (run / "record.json").write_text(json.dumps({**record, **{key: new[n] for key, new in by.items()}}))
        return collect(runs, tmp_path / "together")

    for different in ({"nfe": (8, 99)}, {"epochs": (10.0, 11.0)}):
        with pytest.raises(ValueError, match=f"differ in '{next(iter(different))}'"):
            changed(**different)
    by_time = [f"{record['command']} train.seconds=60" for record in written]
    assert changed(epochs=(10.0, 11.0), command=by_time)["epochs"] == 10.5


def test_the_folder_works_with_a_pipeline(finished):
    answers = pipeline("image-classification", str(finished))(Image.new("RGB", (8, 8)), top_k=10)
    assert {answer["label"] for answer in answers} == {str(digit) for digit in range(10)}


def test_the_record_is_what_an_evaluation_measures(finished):
    record = json.loads((finished / "record.json").read_text())
    model = OdeViTForImageClassification.from_pretrained(finished, dtype=torch.float32)
    statistics = {"mean": model.config.image_mean, "std": model.config.image_std}
    test = evaluation_batches(load_run_data(finished, None, load(finished)), "test", **statistics)
    assert evaluate_batches(model, test).top1 == record["top1"]
    for solver, steps, nfe in (("euler", 2, 2), ("rk4", 8, 32)):
        assert evaluate_batches(model, test, solver_config=SolverConfig(solver, steps, 4.0)).nfe == nfe


def test_a_killed_run_resumes_to_the_same_weights(finished, tmp_path):
    out = tmp_path / "killed"
    process = begin(tmp_path / "killed.log", [f"out={out}", *SMALL])
    deadline = time.time() + 120
    while last_complete(out / "checkpoints") is None:
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.time() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not (out / "record.json").exists(), "it was killed in the middle"
    run(out, "resume=true")
    assert (out / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert losses(out) == losses(finished)
    validations = [
        [line["eval_accuracy"] for line in read_metrics(folder / "metrics.jsonl") if "eval_accuracy" in line]
        for folder in (out, finished)
    ]
    assert validations[0] == validations[1]


def test_accumulation_and_two_processes_give_the_same_losses(tmp_path):
    # Dropout masks are drawn per process and are the one thing that may differ. Muon moves the matrices, and AdamW
    # everything else.
    words = ("model.hidden_dropout=0", "model.attention_dropout=0", "train.optimizer=muon", "train.epochs=1")
    one = losses(run(tmp_path / "one", *words))
    accumulated = losses(run(tmp_path / "accumulated", *words, "train.accumulate=2"))
    two = losses(run(tmp_path / "two", *words, number=2))
    assert len(one) == len(two) == len(accumulated) == 10
    assert accumulated == pytest.approx(one, abs=1e-3)
    assert two == pytest.approx(one, abs=1e-3)


def small(out, **train):
    recipe = Recipe(out=str(out), device="cpu")
    recipe.model.hidden_size, recipe.model.num_attention_heads = 16, 2
    recipe.train.epochs, recipe.train.log_every = 1, 1
    for key, value in train.items():
        setattr(recipe.train, key, value)
    return recipe


def test_a_folder_that_holds_a_run_is_refused(finished):
    with pytest.raises(ValueError, match=r"already holds a run; pass resume=true.*overwrite=true"):
        train_recipe(small(finished))
    finished_recipe = small(finished)
    finished_recipe.resume = True
    with pytest.raises(ValueError, match="is finished"):
        train_recipe(finished_recipe)


def files_of(folder):
    return {path.name for path in folder.iterdir()}


def test_clear_removes_the_files_of_the_run_and_no_others(tmp_path):
    folder = RunFolder(tmp_path)
    folder.acquire(small(tmp_path))
    folder.register("report.html").write_text("by someone who writes reports")
    (folder.register("teacher") / "deep").mkdir(parents=True)
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "figures").mkdir()
    folder.clear()
    assert files_of(tmp_path) == {"thesis.tex", "figures"}


def test_a_run_that_cannot_begin_leaves_the_one_it_was_to_replace(tmp_path):
    RunFolder(tmp_path).acquire(small(tmp_path))
    (RunFolder(tmp_path).register("model.safetensors")).write_text("weights")
    (tmp_path / "thesis.tex").write_text("years of work")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    recipe = small(tmp_path)
    recipe.overwrite, recipe.data.source = True, str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="does not exist"):
        train_recipe(recipe)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    # One that was killed in the middle of it is not what a third run would bring back.
    folder = RunFolder(tmp_path)
    folder.acquire(recipe)
    folder.register("model.safetensors").write_text("half of the new weights")
    folder.acquire(recipe)
    folder.discard()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_what_is_replaced_waits_until_the_new_run_is_trained(tmp_path):
    """Also where a run fails before its first step, but has a finished teacher to go on from."""
    recipe = small(tmp_path)
    RunFolder(tmp_path).acquire(recipe)
    (RunFolder(tmp_path).register("model.safetensors")).write_text("weights")
    recipe.overwrite = True
    folder = RunFolder(tmp_path)
    folder.acquire(recipe)
    (folder.register("teacher")).mkdir()
    (tmp_path / "teacher" / "record.json").write_text("{}")
    folder.discard()
    assert (tmp_path / "teacher" / "record.json").exists()
    assert (tmp_path / ".replaced" / "model.safetensors").read_text() == "weights"
    folder.acquire(recipe)  # typed once more, and it fails before it has a teacher
    folder.discard()
    assert (tmp_path / "model.safetensors").read_text() == "weights"
    assert not (tmp_path / ".replaced").exists()


def test_ways_that_would_skip_pieces_of_weights_are_refused_before_training(tmp_path):
    recipe = small(tmp_path, steps=[8, 2])
    recipe.model.knots, recipe.model.blend = 4, "constant"
    with pytest.raises(ConfigError, match=r"train.steps, .*, 2 steps, T = .*: steps=2 .* would skip 2 of the 4"):
        train_recipe(recipe)
    for grid, times in (("geometric:10", None), (None, [0.0, 0.1, 0.2, 0.3])):
        recipe = small(tmp_path, steps=[])
        recipe.model.knots, recipe.model.blend, recipe.model.steps = 4, "constant", 4
        recipe.model.grid, recipe.model.knot_times = grid, times
        skipped = r"the model's own settings, .*, 4 steps, .* would skip . of the 4 constant pieces"
        with pytest.raises(ConfigError, match=skipped):
            train_recipe(recipe)
    assert not tmp_path.exists()


def test_an_adaptive_solver_needs_no_step_for_each_piece(tmp_path):
    pieces = {"knots": 3, "blend": "constant", "steps": 1}
    fixed, adaptive = small(tmp_path / "fixed", updates=1), small(tmp_path / "adaptive", updates=1)
    for recipe in (fixed, adaptive):
        recipe.train.steps, recipe.train.horizons = [], []
        for name, value in pieces.items():
            setattr(recipe.model, name, value)
    with pytest.raises(ConfigError, match=r"model.knots=3, but model.steps=1: some knots would be passed over"):
        train_recipe(fixed)
    adaptive.model.solver, adaptive.model.tolerance = "dopri5", 0.01
    record = json.loads((train_recipe(adaptive) / "record.json").read_text())
    assert record["nfe"] >= 3 * 6, "dopri5 evaluates at least six times in each of the three pieces"


def test_a_run_takes_the_place_of_another(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "record.json").write_text("{}")
    (tmp_path / "recipe.yaml").write_text("{}")
    recipe = small(tmp_path)
    recipe.overwrite = True
    train_recipe(recipe)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert json.loads((tmp_path / "record.json").read_text())["top1"] >= 0


def test_a_folder_without_a_run_gets_no_manifest(tmp_path):
    RunFolder(tmp_path).register("analysis").mkdir()
    assert files_of(tmp_path) == {"analysis"}
    (tmp_path / "recipe.yaml").write_text("{}")
    RunFolder(tmp_path).register("report.html")
    assert RunFolder(tmp_path).registered == ["recipe.yaml", "report.html"]


def test_resuming_with_other_settings_is_refused(tmp_path):
    first = small(tmp_path / "run", learning_rate=1e30)
    first.model.hidden_dropout = 0.1
    with pytest.raises(DivergedError):
        train_recipe(first)
    second = small(tmp_path / "run", learning_rate=1e-3)
    second.resume, second.model.hidden_dropout = True, 0.1
    with pytest.raises(ValueError, match=r"but train.learning_rate changed"):
        train_recipe(second)
    said = RunFolder(tmp_path / "run").path / "recipe.yaml"
    before = said.read_text()
    for forgotten in ("hidden_dropout", "hidden_size"):  # a preset, or a default, would take its place
        fewer = small(tmp_path / "run", learning_rate=1e30)
        fewer.resume, fewer.model.hidden_dropout = True, 0.1
        setattr(fewer.model, forgotten, None)
        with pytest.raises(ValueError, match=rf"but model.{forgotten} changed"):
            train_recipe(fewer)
    assert said.read_text() == before
    third = small(tmp_path / "nothing")
    third.resume = True
    with pytest.raises(ValueError, match="holds no run"):
        train_recipe(third)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from odevit.train.trainer import OdeViTTrainer

    ordinary = OdeViTTrainer.training_step

    def poisoned(self, model, inputs, num_items_in_batch=None):
        loss = ordinary(self, model, inputs, num_items_in_batch)
        if self.state.global_step == 15:
            self.network.classifier.weight.grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(OdeViTTrainer, "training_step", poisoned)
    recipe = small(tmp_path / "run", epochs=4, clip=0.0)
    with pytest.raises(DivergedError, match=r"nan by step 1\d; not finite: .*classifier.weight") as diverged:
        train_recipe(recipe)
    checkpoint = last_complete(tmp_path / "run/checkpoints")
    assert checkpoint is not None
    assert f"The last good checkpoint is {checkpoint}, from which resume=true goes on. Lower" in str(diverged.value)
    assert all(torch.isfinite(value).all() for value in load_file(checkpoint / "model.safetensors").values())


@pytest.mark.filterwarnings("ignore:This equilibrium has no leak")
def test_a_run_that_ends_before_its_first_checkpoint_promises_none(tmp_path, monkeypatch):
    from odevit.train.trainer import OdeViTTrainer

    unsettled = small(tmp_path / "unsettled")
    unsettled.model.depth, unsettled.model.leak = "equilibrium", 0.0
    unsettled.model.depth_options = {"tolerance": 1e-6, "iterations": 1}
    with pytest.raises(DivergedError, match=r"after step 0 the integration failed: No rest point") as first:
        train_recipe(unsettled)
    monkeypatch.setattr(OdeViTTrainer, "training_step", lambda *_: torch.tensor(math.nan))
    with pytest.raises(DivergedError, match=r"nan by step 1; .*Lower the learning rate") as second:
        train_recipe(small(tmp_path / "diverged"))
    for refused in (first, second):
        assert "checkpoint" not in str(refused.value)
        assert "resume" not in str(refused.value)


def test_a_full_disk_is_a_sentence_and_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    from odevit.train import trainer

    calls = []
    ordinary = trainer.WeightAverage.save

    def full(self, path):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return ordinary(self, path)

    monkeypatch.setattr(trainer.WeightAverage, "save", full)
    with pytest.raises(OSError, match=r"the disk is full.*earlier checkpoints are untouched.*resume=true"):
        train_recipe(small(tmp_path / "run", epochs=3, ema=0.9))
    assert last_complete(tmp_path / "run/checkpoints").name == "checkpoint-10"
    assert not calls[1].parent.exists(), "the half-written one is gone"


def test_an_incomplete_checkpoint_is_passed_over(tmp_path):
    for step in (5, 10, 15):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-5" / COMPLETE).touch()
    (tmp_path / "checkpoint-10" / COMPLETE).touch()
    assert last_complete(tmp_path).name == "checkpoint-10"
    assert last_complete(Path(tmp_path / "nowhere")) is None


def test_starting_from_weights_with_another_head_is_refused(finished, tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir()
        for i in range(20):
            Image.effect_noise((8, 8), 50 + i).save(tmp_path / "data" / name / f"{i}.png")
    recipe = small(tmp_path / "run")
    recipe.data.source = str(tmp_path / "data")
    recipe.init_from = str(finished)
    with pytest.raises(
        ValueError, match=r"the data has 2 classes \(a, b\), the head of .* has 10 \(0, .* for a, b; start from an"
    ):
        train_recipe(recipe)


def test_weights_to_start_from_may_go_another_way_and_stay_who_they_are(finished, tmp_path):
    recipe = small(tmp_path / "run", epochs=1, learning_rate=0.0)
    recipe.init_from = str(finished)
    recipe.model.solver, recipe.model.steps, recipe.model.horizon = "heun", 5, 3.0
    recipe.model.hidden_dropout, recipe.model.hidden_size = 0.25, 16  # the width that it has
    config = (network := load(train_recipe(recipe))).config
    assert network.solver_config == SolverConfig("heun", 5, 3.0)
    assert (config.hidden_dropout, config.attention_dropout) == (0.25, 0.1)
    assert all(torch.equal(weight, load(finished).state_dict()[name]) for name, weight in network.state_dict().items())

    recipe.model.norm, recipe.model.mlp_ratio, recipe.model.leak = "rms", 3.0, 2.0
    with pytest.raises(ConfigError, match=r"(?s)has 3 problems.*model.leak=2.0, but its weights are those of a model"):
        ClassifierTask(recipe).build()
    recipe.model.norm = recipe.model.mlp_ratio = recipe.model.leak = None
    recipe.model.solver, recipe.model.tolerance = None, 0.1
    with pytest.raises(ConfigError, match=r"tolerance=0.1, but solver='exponential_euler' makes fixed steps"):
        ClassifierTask(recipe).build()


@pytest.mark.parametrize(
    "experiment", ["paper/cifar10-scratch", "paper/vit-baseline", "fast/cifar10", "fast/cifar10-patch4"]
)
def test_the_recipes_run_from_their_names(experiment, tmp_path):
    """On a handful of noise images: it is the recipe that is tried, not what it learns."""
    for part, count in (("train", 5), ("test", 1)):
        for name in ("noise", "grain"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i in range(count):
                Image.effect_noise((32, 32), 40 + i).save(tmp_path / "data" / part / name / f"{i}.png")
    settings = {
        "experiment": experiment,
        "out": tmp_path / "run",
        "device": "cpu",
        "data.source": tmp_path / "data",
        "data.validation": 0.2,
        "train.epochs": 1,
        "train.batch_size": 8,
        "train.compile": False,
        "train.evaluate_every": 1,
    }
    if experiment != "paper/vit-baseline":  # which draws no ways
        settings["train.steps"] = [4]
    folder = train_recipe(compose_recipe(words(settings)))
    record = json.loads((folder / "record.json").read_text())
    assert record["name"] == experiment
    assert record["seeds"][0]["seed"] == 0


def test_tensorboard_by_name(tmp_path):
    pytest.importorskip("tensorboard")
    recipe = small(tmp_path / "run")
    recipe.loggers = ["tensorboard"]
    train_recipe(recipe)
    assert list((tmp_path / "run").rglob("events.out.tfevents.*")), "the events belong into the folder of the run"


def test_the_best_weights_are_exchanged_in_one_move(tmp_path, monkeypatch):
    """A kill while they are written leaves the ones before."""
    from odevit.train import trainer as module

    task = ClassifierTask(small(tmp_path))
    task.build()
    trainer = make_trainer(task)
    trainer.save_best()
    before = load_file(trainer.best)
    torch.nn.init.zeros_(task.network.classifier.weight)

    def killed(model, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_model", killed)
        with pytest.raises(KeyboardInterrupt):
            trainer.save_best()
    assert torch.equal(load_file(trainer.best)["classifier.weight"], before["classifier.weight"])
    trainer.save_best()
    assert not load_file(trainer.best)["classifier.weight"].any()


def test_learning_curves_call_best_what_could_be_chosen(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    from odevit.train.record import draw_curves

    logged = [
        ("rollout", 1.0, 0.5),
        ("rollout", 2.0, 0.9),
        ("random_solver", 3.0, 0.7),
        ("random_solver", 4.0, 0.8),
        ("random_solver", 5.0, 0.6),
    ]
    lines = [json.dumps({"phase": name, "epoch": epoch, "eval_accuracy": score}) for name, epoch, score in logged]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: drawn.append(self))
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", "a title")
    texts = [text.get_text() for text in drawn[0].axes[1].texts]
    assert texts == ["best 80.00%", "rollout", "random solver"], (
        "90% was reached before the last phase, which alone selects"
    )


def test_names_of_short_phases_do_not_lie_over_each_other(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    from odevit.train.record import draw_curves

    logged = [("layerwise", 1.0), ("rollout", 5.0), ("random_solver", 8.0), ("random_solver", 100.0)]
    lines = [json.dumps({"phase": name, "epoch": epoch, "loss": 1 / epoch}) for name, epoch in logged]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: drawn.append(self))
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", "a title")
    drawn[0].draw_without_rendering()
    names = [text.get_window_extent() for text in drawn[0].axes[0].texts]
    assert len(names) == 3
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(names))


def test_learning_curves_draw_what_was_logged(finished, monkeypatch):
    from matplotlib.figure import Figure

    from odevit.train.record import draw_curves

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: drawn.append(self))
    draw_curves(finished / "metrics.jsonl", finished / "elsewhere.png", "a title", "a score (%)")
    left, right = drawn[0].axes
    lines = read_metrics(finished / "metrics.jsonl")
    assert left.lines[0].get_ydata().tolist() == losses(finished)
    scores = [100 * line["eval_accuracy"] for line in lines if "eval_accuracy" in line]
    assert right.lines[0].get_ydata().tolist() == scores
    assert right.texts[0].get_text() == f"best {max(scores):.2f}%"
    assert (left.get_ylabel(), right.get_ylabel()) == ("training loss", "a score (%)")


def test_images_that_are_not_held_in_memory_train_too(tmp_path, capsys):
    for part, count in (("train", 40), ("test", 8)):
        for name, strength in (("faint", 20), ("strong", 90)):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i in range(count):
                Image.effect_noise((8, 8), strength).save(tmp_path / "data" / part / name / f"{i}.png")
    recipe = small(tmp_path / "run", epochs=2, batch_size=16, log_every=100)
    recipe.data.source, recipe.data.resident_limit_gb = str(tmp_path / "data"), 0.0
    train_recipe(recipe)
    assert json.loads((tmp_path / "run/record.json").read_text())["top1"] >= 0
    printed = capsys.readouterr().out
    assert "validation" in printed
    assert "nan" not in printed, "a loss that was not logged yet is not a loss that is not a number"
