"""The command line says what it does and what is wrong."""

import json
import runpy
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from transformers import ViTImageProcessorPil

from odevit import cli
from odevit.cli import HOMES, OVERVIEW, main, verb_of
from odevit.cli.words import described
from odevit.model import OdeStudentConfig, get_ode_model
from tests.model.tiny import tiny_model
from tests.model.zoo import make


def test_the_overview_fits_on_a_screen_and_names_every_verb(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 120
    for name in HOMES:
        (line,) = (
            line for line in OVERVIEW.split("For example")[0].splitlines() if line.startswith(f"  odevit {name} ")
        )
        assert line in lines
        assert len(line.split("   ", 1)[1].split()) > 3, "what it does"


@pytest.mark.parametrize("name", HOMES)
def test_every_verb_has_its_own_help_with_every_key_and_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    text, verb = capsys.readouterr().out, verb_of(name)
    assert text.startswith(f"odevit {name}")
    assert f"Example: odevit {name}" in text
    if name not in ("train", "distill"):
        documented = {name for names, _ in described(verb.function)[1] for name in names}
        assert documented >= set(verb.arguments()[1]), "every key is explained"
        assert all(f" {key}=" in text for key in verb.arguments()[1])


def test_the_help_of_a_recipe_lists_groups_keys_and_what_is_below(capsys):
    assert main(["distill", "--help"]) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith("experiment= digits, ") for line in lines)
    assert "device=auto `auto`, `cpu`, `cuda`." in lines, "a field of the recipe that this one is derived from"
    assert any(line.startswith("compare=false Whether") for line in lines)
    for key in ("student.KEY=", "objective.KEY=", "train.KEY=", "epochs", "jasmin", "horizon"):
        assert key in text


def test_every_verb_is_a_function(monkeypatch):
    for name in ("train", "distill", "evaluate", "Evaluation", "analyze", "explore", "predict", "Prediction", "info"):
        assert callable(getattr(cli, name))
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        cli.fly  # noqa: B018


def test_help_loads_nothing_that_only_work_needs():
    code = (
        "import sys; from odevit.cli import main; main(['--help']);"
        "print([name for name in ('matplotlib', 'hydra', 'rich', 'sklearn', 'odevit.film') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_can_be_run(capsys, monkeypatch):
    """`python -m odevit.cli`, which is what torchrun starts."""
    monkeypatch.setattr(sys, "argv", ["odevit.cli", "trian"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("odevit.cli", run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


def test_unknown_verbs_get_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


def test_info_names_everything(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("torch", "lie_trotter", "hopfield", "stacked", "center", "paper-cifar10: 409,738"):
        assert word in out


def test_experiments_are_listed(capsys):
    assert main(["train", "experiment=?"]) == 0
    assert "fast/cifar10\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "train.epoch=3"], "Did you mean 'train.epochs'"),
        (["train", "experiments=?"], "Did you mean 'experiment'"),
        (["eval"], "eval takes one run"),
        (["eval", "nowhere"], "neither a folder nor a bundled model"),
        (["predict"], "predict takes one image or more"),
        (["eval", "x", "step=3"], "Did you mean 'steps'"),
        (["eval", "cifar10", "stop=speed", "data=digits"], "velocity"),
        (["analyze"], "analyze takes one run"),
        (["analyze", "nowhere"], "neither a folder nor a bundled model"),
        (["explore"], "explore takes one image or more"),
        (["explore", "nowhere.png"], "nowhere.png"),
    ],
)
def test_errors_are_one_sentence(words, message, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_train_eval_predict(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["train.epochs=1", "model.hidden_size=16", "model.num_attention_heads=2", "device=cpu"]
    assert main(["train", "out=run", *small]) == 0
    assert main(["eval", "run", "steps=2,4", "solver=euler,heun", "device=cpu"]) == 0
    table = capsys.readouterr().out
    assert table.count("euler") == 2
    assert "NFE" in table
    assert main(["eval", "run", "stop=velocity:10,kl", "device=cpu"]) == 0
    table = capsys.readouterr().out
    assert "velocity:10" in table
    # Ten times its own length in a unit of time: everyone is slower than that, and leaves after the second step.
    assert any(line.split()[7] == "2" for line in table.splitlines() if "velocity:10" in line)
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save("digit.png")
    assert main(["predict", "digit.png", "model=run", "top=2"]) == 0
    assert capsys.readouterr().out.count("%") == 2
    assert main(["eval", "run", "steps=2", "limit=20", "device=cpu", "out=scores.json"]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert set(scores) == {"model", "data", "split", "device", "versions", "scores"}
    (row,) = scores["scores"]
    assert set(row) == {"solver", "steps", "horizon", "score", "stop"}
    assert (row["steps"], row["stop"], row["score"]["images"]) == (2, "", 20)
    capsys.readouterr()
    (tmp_path / "broken.png").write_bytes(b"not an image")
    assert main(["predict", "broken.png", "model=run"]) == 2
    assert "cannot be read as an image" in capsys.readouterr().err


def test_multirun_makes_one_run_for_each_combination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["train.epochs=1", "model.hidden_size=16", "model.num_attention_heads=2", "device=cpu"]
    assert main(["train", "--multirun", "seed=0,1", *small]) == 0
    assert (tmp_path / "runs/digits-0/record.json").exists()
    assert (tmp_path / "runs/digits-1/record.json").exists()


@pytest.fixture
def student(tmp_path):
    """A student as `odevit distill` leaves it, its image processor beside it."""
    vit = make("vit-classifier")
    vit.save_pretrained(tmp_path / "teacher")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "teacher")
    teacher = type(vit).from_pretrained(tmp_path / "teacher").eval()
    get_ode_model(teacher, OdeStudentConfig(steps=4, horizon=2.0)).save_pretrained(tmp_path / "student")
    return tmp_path / "student"


def test_a_student_predicts_like_any_other_model(student, tmp_path, capsys):
    Image.fromarray(np.full((20, 30, 3), 90, dtype=np.uint8)).save(tmp_path / "grey.png")
    assert main(["predict", str(tmp_path / "grey.png"), f"model={student}", "top=2"]) == 0
    assert capsys.readouterr().out.count("%") == 2
    (own,) = cli.predict([tmp_path / "grey.png"], model=student, top=2)
    (other,) = cli.predict([tmp_path / "grey.png"], model=student, top=2, solver="rk4", steps=1)
    assert own.image == str(tmp_path / "grey.png")
    assert own.labels[0][1] >= own.labels[1][1]
    assert own.labels != other.labels


def test_a_stack_is_predicted_but_not_integrated_in_other_ways(tmp_path, capsys):
    tiny_model(depth="stacked").save_pretrained(tmp_path / "stack")
    Image.fromarray(np.full((16, 16, 3), 90, dtype=np.uint8)).save(tmp_path / "grey.png")
    words = ["predict", str(tmp_path / "grey.png"), f"model={tmp_path / 'stack'}"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("%") == 3
    assert main([*words, "solver=rk4"]) == 2
    assert "stack" in capsys.readouterr().err
