"""Files that are missing, damaged or absurd: one sentence that says which, or a right result."""

import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import odevit
from odevit.cli import main
from odevit.cli.commands import evaluate
from odevit.cli.recipes import train
from odevit.core.solve import solve
from odevit.distill.teacher import Teacher
from odevit.errors import OdeVitWarning
from odevit.hf.export import export_program
from odevit.hub import is_path
from tests.bad_input.conftest import BYTES
from tests.tiny import tiny_images, tiny_model

WEIGHTS, CONFIG, RECIPE, PROCESSOR = "model.safetensors", "config.json", "recipe.yaml", "preprocessor_config.json"
SMALL = ["model=digits", "train=digits", "train.batch_size=4", "device=cpu", "model.hidden_size=8"]
SMALL += ["model.num_attention_heads=2"]
GIVEN = [word for word in SMALL if not word.startswith("model")]
"""The same beside a teacher, which is a model already."""


def tensors(change):
    """A change of the weights."""

    def damage(folder):
        weights = load_file(folder / WEIGHTS)
        change(weights)
        save_file(weights, folder / WEIGHTS, {"format": "pt"})

    return damage


def content(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def settings(**changed):
    """A change of config.json."""

    def damage(folder):
        values = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(values | changed))

    return damage


def fill(key, number):
    return tensors(lambda weights: weights[key].view(-1)[:1].fill_(number))


DAMAGED = {
    "NaN in the head": (
        fill("classifier.weight", torch.nan),
        r"1 of the \d+ weights of .*NaN or infinity \(classifier",
    ),
    "infinity in the field": (fill("odevit.norm.weight", torch.inf), "hold NaN or infinity"),
    "no head": (tensors(lambda weights: weights.pop("classifier.weight")), "holds no head"),
    "another shape": (
        tensors(lambda weights: weights.update({"classifier.weight": torch.zeros(3, 3)})),
        "other shapes than its config.json says",
    ),
    "a weight missing": (tensors(lambda weights: weights.pop("odevit.norm.weight")), "does not fit this model"),
    "truncated": (lambda folder: content(WEIGHTS, (folder / WEIGHTS).read_bytes()[:-9])(folder), "cannot be read"),
    "truncated in the header": (
        lambda folder: content(WEIGHTS, (folder / WEIGHTS).read_bytes()[:99])(folder),
        "cannot be read",
    ),
    "empty weights": (content(WEIGHTS, b""), "cannot be read"),
    "garbage": (content(WEIGHTS, b"\x93garbage" * 999), "cannot be read"),
    "a pickle": (content(WEIGHTS, pickle.dumps({"classifier.weight": [1.0]})), "cannot be read"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "no file named model.safetensors"),
    "no config.json": (lambda folder: (folder / CONFIG).unlink(), "holds no config.json"),
    "an empty config.json": (content(CONFIG, b""), "config.json"),
    "half a config.json": (content(CONFIG, b'{"model_type": '), "config.json"),
    "config.json in bytes": (content(CONFIG, b"\xff\xfe\x00"), "config.json"),
    "config.json as a list": (content(CONFIG, b"[1, 2]"), "config.json"),
    "config.json of nothing": (content(CONFIG, b"{}"), "config.json"),
    "an unknown architecture": (settings(model_type="elephant"), "elephant"),
    "100,000 steps": (settings(steps=100_000), r"steps=100000; expected .* at most 10,000"),
    "10^9 channels": (settings(hidden_size=10**9), "hidden_size=1000000000"),
    "steps as text": (settings(steps="many"), "steps='many'"),
    "an infinite horizon": (settings(horizon=float("inf")), "horizon=inf"),
    "no pixel statistics": (settings(image_mean=[], image_std=[]), "image_mean"),
    "a deviation of zero": (settings(image_std=[0.0, 0.0, 0.0]), "image_std"),
    "labels that are none": (settings(id2label=5), "cannot be read"),
    "labels without numbers": (settings(id2label={"a": "b"}), "invalid literal"),
    "a type that is none": (settings(dtype="foo"), "cannot be read"),
}
"""What is done to the folder of a run, and what is said of it."""


@pytest.fixture
def damaged(workshop, tmp_path):
    def make(damage, name="run"):
        folder = tmp_path / "damaged"
        shutil.copytree(workshop / name, folder)
        damage(folder)
        return folder

    return make


@pytest.mark.parametrize("verb", ["eval", "predict", "analyze", "explore"])
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_model_is_refused_by_every_verb(what, verb, damaged, typed):
    damage, message = DAMAGED[what]
    folder = damaged(damage)
    words = ["picture.png", f"model={folder}"] if verb in ("predict", "explore") else [str(folder), "data=pictures"]
    outcome = typed(verb, *words)
    assert outcome.refused
    assert len(outcome.message.splitlines()) <= 3
    with pytest.raises(ValueError, match=message):
        odevit.load(folder)


@pytest.mark.parametrize("what", ["NaN in the head", "truncated", "empty weights", "half a config.json", "no head"])
def test_a_damaged_teacher_or_start_is_refused(what, damaged, typed):
    folder = damaged(DAMAGED[what][0], "teacher")
    assert typed("distill", "data=pictures", f"teacher={folder}", *GIVEN, "compare=false", "out=out").refused
    with pytest.raises(ValueError, match="damaged"):
        Teacher(folder)
    start = f"init_from={folder}"
    assert what == "no head" or typed("train", "data=pictures", start, *SMALL, "out=out").refused


@pytest.mark.parametrize("text", ["data: [", "data: 5", "- 1", "\x00", "data: {source: nowhere/at/all}", "{}"])
def test_a_damaged_recipe_is_refused(text, damaged, typed):
    folder = damaged(content(RECIPE, text.encode()))
    for verb in ("eval", "analyze"):
        outcome = typed(verb, str(folder))
        assert outcome.refused
        assert "recipe.yaml" in outcome.message or "nowhere/at/all" in outcome.message


EXPLODE = tensors(lambda weights: [weights[name].mul_(1e20) for name in weights if "depth" in name])


def test_the_trajectory_must_reach_its_end(typed, damaged):
    """A step that is far too long ends in infinity: no prediction, no film, no export."""
    folder = damaged(EXPLODE)
    for verb in ("predict", "explore"):
        outcome = typed(verb, "picture.png", f"model={folder}", "solver=euler", "horizon=1e30")
        assert outcome.refused
        assert "is not finite after" in outcome.message
    with pytest.raises(ValueError, match="does not integrate a grey image: The state at t"):
        export_program(odevit.load(folder), solver="euler", horizon=1e30)


def test_eval_says_that_there_is_no_answer(workshop, damaged, capsys):
    folder, data = damaged(EXPLODE), f"data={workshop / 'pictures'}"
    assert main(["eval", str(folder), data, "solver=euler", "horizon=1e30", "device=cpu"]) == 0
    table = capsys.readouterr().out
    assert table.count("no answer") == 2
    assert "The states are not finite" in table
    assert "%" not in table.splitlines()[1]
    assert main(["eval", str(workshop / "run"), data, "device=cpu"]) == 0
    assert "no answer" not in capsys.readouterr().out


def test_an_adaptive_solver_that_gives_up_does_not_predict(typed):
    outcome = typed("predict", "picture.png", "model=run", "solver=dopri5", "horizon=1e12")
    assert outcome.refused
    assert "picture.png has no answer" in outcome.message


def test_steps_are_bounded_where_they_are_typed_but_not_in_solve():
    with pytest.raises(ValueError, match="at most 10,000"):
        tiny_model()(tiny_images(), steps=10_001)
    assert solve(lambda x, t: -x, torch.ones(1), solver="euler", steps=10_001).stats.steps == 10_001


def table(folder, labels, **columns):
    """A parquet file with one small picture per label."""
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(folder / "one.png")
    image = {"bytes": (folder / "one.png").read_bytes(), "path": None}
    rows = pyarrow.table({"image": [image] * len(labels), "label": labels, **columns})
    (folder / "table").mkdir()
    pyarrow.parquet.write_table(rows, folder / "table/train-00000-of-00001.parquet")
    return folder / "table"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 10**9] * 4, r"go up to 1,000,000,000, but it has 12 images; expected .* 0, 1, 2"),
        ([0, 1, -5] * 4, "outside 0..1"),
        ([0, 0, 0] * 4, "only one class"),
        ([0, None, 1] * 4, "have no 'label'"),
        ([0.5, 1.5] * 6, "expected integers"),
        (["a", "b"] * 6, "expected integers"),
    ],
)
def test_labels_must_count_the_classes(labels, message, typed, tmp_path):
    folder = table(tmp_path, labels)
    with pytest.raises(ValueError, match=message):
        odevit.data.load_data(folder)
    assert typed("train", f"data={folder}", *SMALL, "out=out").refused
    assert typed("eval", "run", f"data={folder}").refused


def test_pictures_that_cannot_be_read_name_the_key_to_type(workshop, typed, tmp_path):
    shutil.copytree(workshop / "pictures", tmp_path / "mixed")
    (tmp_path / "mixed/circle/3.png").write_bytes(b"no picture")
    outcome = typed("train", "data=mixed", *SMALL, "out=out")
    assert outcome.refused
    assert "circle/3.png" in outcome.message
    assert "data.skip_unreadable=true" in outcome.message
    with pytest.warns(OdeVitWarning, match="skipped: 1 image"):
        assert not typed("train", "data=mixed", *SMALL, "out=out", "data.skip_unreadable=true").refused
    for name in ("text.txt", "mixed/circle/3.png", "nowhere.png", "pictures", ""):
        assert typed("predict", name, "model=run").refused
        assert typed("explore", name, "model=run").refused


def test_sizes_that_do_not_fit_name_the_key_to_type(typed):
    outcome = typed("train", "data=pictures", *SMALL, "out=out", "model.image_size=16", "init_from=run")
    assert "model.image_size=8" in outcome.message
    outcome = typed("train", "data=pictures", *SMALL, "out=out", "train.batch_size=64")
    assert not outcome.refused or "train.batch_size=" in outcome.message


@pytest.mark.parametrize("name", ["nan", "1e3", "true", "none", "a b", "a=b", "(x)", "007"])
def test_a_folder_may_be_called_anything(name, workshop, typed, tmp_path):
    shutil.copytree(workshop / "run", tmp_path / name)
    shutil.copytree(workshop / "teacher", tmp_path / f"{name}-teacher")
    shutil.copytree(workshop / "pictures", tmp_path / f"{name}-pictures")
    data = f"data={name}-pictures"
    assert not typed("predict", "picture.png", f"model={name}").refused
    assert not typed("explore", "picture.png", f"model={name}", f"out={name}").refused
    # A word without a slash is a key as soon as there is an equals sign in it.
    run = f"./{name}"
    assert not typed("eval", run, data, f"cache={name}", "device=cpu").refused
    assert not typed("analyze", run, data, f"out={name}", "device=cpu").refused
    assert not typed("train", data, *SMALL, f"init_from={name}", f"out={name}-new", f"cache={name}").refused
    assert not typed("distill", data, f"teacher={name}-teacher", *GIVEN, f"out={name}-new", "phases=none").refused


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("uoft-cs/cifar10", False),
        ("timm/vit_base_patch16_224.augreg", False),
        ("cifar10:plain", False),
        ("./x", True),
        ("~/x", True),
        ("/x", True),
        ("a/b/c", True),
        ("photos.zip", True),
        ("weights/model.safetensors", True),
        ("..", True),
        ("", True),
    ],
)
def test_what_can_only_be_a_path(name, path):
    assert is_path(name) is path


def test_a_missing_path_does_not_wait_for_the_hub(typed, tmp_path, monkeypatch):
    """A name below a folder that is here is a path; another is looked up, if the hub answers at all."""
    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("odevit.hub._is_reachable", lambda: asked.append(True))
    (tmp_path / "photos").mkdir()
    for key in ("data=photos/cats", "init_from=photos/model", "data=./photos", "init_from=x.zip"):
        assert typed("train", "data=pictures", *SMALL, "out=out", key).refused
    for key in ("teacher=photos/model", "teacher=~/nowhere"):
        assert typed("distill", "data=pictures", *SMALL, "out=out", key).refused
    assert not asked
    assert "nobody/nothing" in typed("train", "data=nobody/nothing", *SMALL, "out=out").message
    assert (
        "nobody/nothing" in typed("distill", "data=pictures", "teacher=nobody/nothing", *GIVEN, "phases=none").message
    )
    assert len(asked) == 2


def test_a_run_that_never_began_leaves_nothing_in_the_way(typed, tmp_path, monkeypatch):
    words = ["train", "data=pictures", *SMALL, "out=runs/new"]
    assert typed(*words, "model.image_size=16", "init_from=run").refused
    assert not (tmp_path / "runs/new").exists()
    assert not typed(*words).refused, "the next try is not told that there is a run already"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/mine.txt").write_text("mine")
    assert typed(*words, "out=notes", "model.image_size=16", "init_from=run").refused
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"], "other people's files stay"


def test_a_run_is_evaluated_from_another_folder(tmp_path, workshop, monkeypatch):
    """The recipe of a run names its data in full; what was typed stands in the record."""
    monkeypatch.chdir(workshop)
    words = ["data=pictures", *SMALL, "train.epochs=1", f"out={tmp_path / 'run'}"]
    folder = train(words)
    assert json.loads((folder / "record.json").read_text())["data"] == "pictures"
    monkeypatch.chdir(tmp_path)
    (score,) = evaluate(folder, device="cpu")
    assert score.score.images > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "+foo=1"], "unknown key '+foo'"),
        (["train", "+train.epochs=1"], "expected train.epochs=VALUE"),
        (["train", "~train.epochs"], "expected train.epochs=VALUE"),
        (["train", "train.epochs"], "'train.epochs' is no key=value"),
        (["train", "seed=1,2"], "--multirun"),
        (["train", "out=${nowhere}"], "nowhere"),
        (["train", "data.augmentation=strong"], "data.augmentation=strong"),
        (["train", "train.steps=[4"], "train.steps=[4; expected several in brackets"),
        (["train", "model=nowhere", "data=digits"], "unknown model 'nowhere'"),
        (["train", "device=cuda:99"], "no such CUDA device"),
        (["train", "device=gpu"], "device='gpu'; expected auto, cpu or cuda"),
        (["train", "train.clip=-1"], "train.clip=-1.0; expected the largest norm"),
        (["train", "train.epochs=abc"], "train.epochs=abc; expected a whole number"),
        (["train", "seed=abc"], "seed=abc; expected a whole number"),
        (["train", "train.steps=[100000]"], "at most 10,000"),
        (["train", "model.image_size=0"], "model.image_size=0; expected a whole number"),
        (["eval", "run", "device=cuda:99"], "no such CUDA device"),
        (["eval", "run", "device=tpu"], "expected auto, cpu or cuda"),
        (["eval", "run", "limit=abc"], "limit=abc; expected a whole number"),
        (["eval", "run", "out=nowhere/scores.json"], "which does not exist"),
        (["analyze", "run", "out=text.txt"], "is a file"),
        (["predict", "picture.png", "model=run", "top=0"], "top=0; expected a whole number, at least 1"),
        (["explore", "picture.png", "model=run", "seconds=abc"], "seconds=abc; expected a number"),
        (["explore", "picture.png", "model=teacher"], "no trajectory"),
        (["analyze", "teacher", "data=pictures"], "no trajectory"),
    ],
)
def test_what_is_typed_wrong_is_said_in_the_words_of_the_keys(words, message, typed):
    outcome = typed(*words)
    assert outcome.refused
    assert message in outcome.message


def test_little_memory_and_time_are_enough_to_refuse(workshop, tmp_path):
    """In a process of its own, measured from outside: the largest of the bad inputs, one after the other."""
    folder = table(tmp_path, [0, 1, 10**9] * 4)
    code = (
        "import resource; from odevit.cli import main\n"
        f"for words in (['eval', {str(workshop / 'run')!r}, 'data={folder}'], ['train', 'data={folder}', 'out=a'],\n"
        "    ['train', 'model.steps=99999'], ['train', 'train.steps=[99999]'], ['train', 'model.image_size=99999']):\n"
        "    assert main(words) == 2\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert int(done.stdout.splitlines()[-1]) < BYTES
