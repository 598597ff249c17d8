"""The command line says what it does and what is wrong."""

import numpy as np
import pytest
from PIL import Image

from odevit.cli import main


def test_help(capsys):
    assert main([]) == 0
    assert "odevit train" in capsys.readouterr().out


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
    (tmp_path / "broken.png").write_bytes(b"not an image")
    assert main(["predict", "broken.png", "model=run"]) == 2
    assert "cannot be read as an image" in capsys.readouterr().err


def test_multirun_makes_one_run_for_each_combination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["train.epochs=1", "model.hidden_size=16", "model.num_attention_heads=2", "device=cpu"]
    assert main(["train", "--multirun", "seed=0,1", *small]) == 0
    assert (tmp_path / "runs/digits-0/record.json").exists()
    assert (tmp_path / "runs/digits-1/record.json").exists()
