"""What version 0.1 saved still loads, and answers as it did then."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

from odevit import OdeStudent, OdeViTForImageClassification, load

LEGACY = Path(__file__).parents[1] / "legacy"
PIXELS = torch.linspace(-1, 1, 2 * 3 * 8 * 8).sin().mul(3).view(2, 3, 8, 8)
LOGITS = {name: torch.tensor(values) for name, values in json.loads((LEGACY / "logits.json").read_text()).items()}


def assert_answers(logits, name):
    # Sums of another CPU round otherwise; a few hundred roundings of numbers of this size.
    tolerance = 1000 * torch.finfo(torch.float32).eps * LOGITS[name].abs().max().item()
    torch.testing.assert_close(logits, LOGITS[name], rtol=0, atol=tolerance)


@torch.no_grad()
def test_a_run():
    for model in (load(LEGACY / "run"), AutoModelForImageClassification.from_pretrained(LEGACY / "run")):
        assert isinstance(model, OdeViTForImageClassification)
        assert model.way.name == "lie_trotter", "its own solver, whatever today's default is"
        assert_answers(model(PIXELS).logits, "run")
        assert_answers(model(PIXELS, solver="rk4", steps=24).logits, "run, rk4 in 24 steps")


@torch.no_grad()
@pytest.mark.parametrize("reader", [load, OdeStudent.from_pretrained])
def test_a_student(reader):
    student = reader(LEGACY / "student")
    assert isinstance(student, OdeStudent)
    assert_answers(student(PIXELS).logits, "student")
    assert_answers(student(PIXELS, steps=7).logits, "student, 7 steps")
    assert student.original_parameters > student.parameter_count
    assert student.labels == {number: str(number) for number in range(10)}


@torch.no_grad()
def test_a_student_saved_again_has_todays_format(tmp_path):
    load(LEGACY / "student").save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "odevit_classes.py",
        "preprocessor_config.json",
    }
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(again, OdeStudent)
    assert_answers(again(PIXELS).logits, "student")
    assert again.original_parameters == load(LEGACY / "student").original_parameters


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    shutil.copy(LEGACY / "student/recipe.yaml", tmp_path)
    with pytest.raises(ValueError, match=r"holds no config\.json; expected the folder of a finished run.*cifar10"):
        load(tmp_path)
    with pytest.raises(ValueError, match="'nowhere' is neither a folder nor a bundled model"):
        load("nowhere")
