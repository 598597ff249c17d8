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
from odevit.cli import NAMES, find_command, main
from odevit.cli.commands import COMMANDS, Evaluation
from odevit.cli.help import FILE, make_help
from odevit.cli.parser import parse_docstring
from odevit.core.image_model import ImageModel
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.surgery import get_ode_model
from odevit.train.compose import GROUPS, groups_of, options
from odevit.train.evaluate import Score
from odevit.version import __version__
from odevit_command import OVERVIEW
from tests.pictures import folder_of_shapes
from tests.tiny import tiny_model
from tests.zoo import make


def test_overview_fits_on_a_screen_and_names_every_command(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 120
    for name in NAMES:
        (line,) = (
            line for line in OVERVIEW.split("For example")[0].splitlines() if line.startswith(f"  odevit {name} ")
        )
        assert line in lines
        assert len(line.split("   ", 1)[1].split()) > 3, "what it does"


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_command_has_every_key_and_two_examples(name, capsys):
    assert main([name, "--help"]) == 0
    text, verb = capsys.readouterr().out, find_command(name)
    assert text.startswith(f"odevit {name}")
    assert text.split("Examples:\n")[1].count(f"  odevit {name}") == 2
    if name not in ("train", "distill"):
        documented = {name for names, _ in parse_docstring(verb.function)[1] for name in names}
        assert documented >= set(verb.arguments()[1]), "every key is explained"
        assert all(f" {key}=" in text for key in verb.arguments()[1])


@pytest.mark.parametrize("name", ["train", "distill"])
def test_help_of_a_recipe_fits_two_screens(name, capsys):
    assert main([name, "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 60


def test_help_of_a_recipe_lists_groups_and_main_keys_and_help_all_the_others(capsys):
    assert main(["distill", "--help"]) == 0
    short = capsys.readouterr().out
    assert main(["distill", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert {*short.splitlines()} - {*text.splitlines()} == {
        line for line in short.splitlines() if "more options" in line
    }
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith("experiment= digits, ") for line in lines)
    assert "epochs=40" in text, "what odevit distill does, not what the dataclass begins with"
    assert "device=auto `auto`, `cpu`, `cuda`." in lines, "a field of the recipe that this one is derived from"
    assert any(" Whether the student" in line and line.startswith("compare=") for line in lines)
    for key in ("student.knots=1 ", "objective.jasmin=0.0", "train.clip=1.0", "teacher_train.KEY=", "stopping.bound="):
        assert key in text


def test_help_lists_other_defaults_only_of_keys_that_it_lists():
    tables = find_command("distill").help()
    listed = {**tables["tables"]["Options and defaults"], **tables["more"]["All other options"]}
    keys = {row.partition("=")[0] for row in listed}
    [other] = [table for title, table in tables["more"].items() if title.startswith("Other defaults")]
    assert {row.partition("=")[0] for row in other} <= keys


def test_every_command_is_a_function_of_cli(monkeypatch):
    for name in ("train", "distill", "evaluate", "Evaluation", "analyze", "explore", "predict", "Prediction", "info"):
        assert callable(getattr(cli, name))
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        cli.fly  # noqa: B018


def test_help_json_is_up_to_date():
    assert FILE.read_text() == make_help(), "run make format"


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["predict", "x.png", "-h"], ["--version"]])
def test_help_and_version_do_not_import_torch(words):
    code = (
        f"import sys; from odevit_command import main; assert main({words}) == 0;"
        "print([name for name in ('torch', 'transformers', 'hydra', 'odevit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 1
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_into_a_closed_pipe_exits_0():
    """`odevit train --help | head`."""
    code = "import sys; from odevit_command import main; sys.stdin.read(); sys.exit(main(['train', '--help']))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_version_prints_the_version_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"odevit {__version__}\n"


def test_python_m_odevit_cli_runs_main(capsys, monkeypatch):
    """`python -m odevit.cli`, which is what torchrun starts."""
    monkeypatch.setattr(sys, "argv", ["odevit.cli", "trian"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("odevit.cli", run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


def test_unknown_command_suggests_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


def test_info_lists_versions_and_registered_names(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("torch", "lie_trotter", "hopfield", "stacked", "center", "paper-cifar10: 409,738"):
        assert word in out


ROOTS = {"train": "recipe", "distill": "distill"}


def test_every_group_is_a_choice_of_train_or_distill():
    assert {group for root in ROOTS.values() for group in groups_of(root)} == {*GROUPS}


@pytest.mark.parametrize(
    ("verb", "group"), [(verb, group) for verb, root in ROOTS.items() for group in groups_of(root)]
)
def test_group_question_mark_lists_its_files(verb, group, capsys):
    assert main([verb, f"{group}=?"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith("  "))
    assert set(options(group)) == set(listed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "train.epoch=3"], "Did you mean 'train.epochs'"),
        (["train", "experiments=?"], "Did you mean 'experiment'"),
        (
            ["distill", "system=vit"],
            "there is no such group here; expected one of model, data, train, phases",
        ),
        (["train", "phases=default"], "phases=default: there is no such group here"),
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
def test_errors_of_use_exit_2_without_a_traceback(words, message, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_train_then_eval_and_predict_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["train.epochs=1", "model.hidden_size=16", "model.num_attention_heads=2", "device=cpu"]
    assert main(["train", "out=run", *small]) == 0
    assert main(["eval", "run", "steps=2,4", "solver=euler,heun", "device=cpu"]) == 0
    table = capsys.readouterr().out
    assert table.count("euler") == 2
    assert "NFE" in table
    assert main(["eval", "run", "depth=tied", "limit=20", "device=cpu"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", "depth=stacked", "device=cpu"]) == 2
    assert "depth='stacked' was asked of run, which holds a classifier with depth='ode'" in capsys.readouterr().err
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
    assert set(row) == {"solver", "steps", "horizon", "grid", "score", "stop"}
    assert (row["steps"], row["stop"], row["score"]["images"]) == (2, "", 20)
    capsys.readouterr()
    (tmp_path / "broken.png").write_bytes(b"not an image")
    assert main(["predict", "broken.png", "model=run"]) == 2
    assert "cannot be read as an image" in capsys.readouterr().err


def test_eval_table_leaves_out_ranks_that_always_hold(capsys):
    score = Score(0.5, 0.9, 1.0, 0.1, 1260, 12, 0.5, classes=4)
    COMMANDS["eval"].show([Evaluation("rk4", 3, 1.0, score)])
    header, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["solver", "steps", "horizon", "stop", "top-1", "top-3", "NFE", "ms/image", "images"]
    assert row[-1] == "1,260"


def test_multirun_makes_one_run_per_combination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["train.epochs=1", "model.hidden_size=16", "model.num_attention_heads=2", "device=cpu"]
    assert main(["train", "--multirun", "seed=0,1", *small]) == 0
    assert (tmp_path / "runs/digits-0/record.json").exists()
    assert (tmp_path / "runs/digits-1/record.json").exists()
    folder_of_shapes(tmp_path / "shapes", 4)
    assert main(["train", "--multirun", "seed=0,1", "data=shapes", "model.image_size=16", *small]) == 0
    assert (tmp_path / "runs/shapes-1/record.json").exists()


@pytest.fixture
def student(tmp_path):
    """A student as `odevit distill` leaves it, its image processor beside it."""
    vit = make("vit-classifier")
    vit.save_pretrained(tmp_path / "teacher")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "teacher")
    teacher = type(vit).from_pretrained(tmp_path / "teacher").eval()
    get_ode_model(teacher, OdeStudentConfig(steps=4, horizon=2.0)).save_pretrained(tmp_path / "student")
    return tmp_path / "student"


def test_predict_with_a_student(student, tmp_path, capsys):
    Image.fromarray(np.full((20, 30, 3), 90, dtype=np.uint8)).save(tmp_path / "grey.png")
    assert main(["predict", str(tmp_path / "grey.png"), f"model={student}", "top=2"]) == 0
    assert capsys.readouterr().out.count("%") == 2
    (own,) = cli.predict([tmp_path / "grey.png"], model=student, top=2)
    (other,) = cli.predict([tmp_path / "grey.png"], model=student, top=2, solver="rk4", steps=1)
    assert own.image == str(tmp_path / "grey.png")
    assert own.labels[0][1] >= own.labels[1][1]
    assert own.labels != other.labels


def test_predict_with_a_stack_refuses_a_solver(tmp_path, capsys):
    tiny_model(depth="stacked").save_pretrained(tmp_path / "stack")
    Image.fromarray(np.full((16, 16, 3), 90, dtype=np.uint8)).save(tmp_path / "grey.png")
    words = ["predict", str(tmp_path / "grey.png"), f"model={tmp_path / 'stack'}"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("%") == 3
    assert main([*words, "solver=rk4"]) == 2
    assert "stack" in capsys.readouterr().err


def test_predict_keeps_the_other_answers_when_one_image_fails_and_exits_1(tmp_path, capsys, monkeypatch):
    tiny_model().save_pretrained(tmp_path / "model")
    files = [str(tmp_path / f"{name}.png") for name in ("first", "second", "third")]
    for grey, file in enumerate(files, start=1):
        Image.fromarray(np.full((16, 16, 3), 60 * grey, dtype=np.uint8)).save(file)
    original = ImageModel.pixels_of

    def overflowing(model, picture):
        pixels = original(model, picture)
        return pixels.sign() * 3e38 if picture.getpixel((0, 0))[0] == 120 else pixels

    monkeypatch.setattr(ImageModel, "pixels_of", overflowing)
    assert main(["predict", *files, f"model={tmp_path / 'model'}", "top=1"]) == 1
    captured = capsys.readouterr()
    assert [line.split("\t")[0] for line in captured.out.splitlines()] == [files[0], files[2]]
    assert f"{files[1]} has no answer" in captured.err
    failed = cli.predict(files, model=tmp_path / "model")[1]
    assert failed.labels == ()
    assert failed.failure
