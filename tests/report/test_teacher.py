"""A student beside its teacher, and the bound that was tracked while it learned."""

import json

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from odevit import get_ode_model
from odevit.report.collect import analyse
from odevit.report.stopping import stopping_epoch
from odevit.report.teaching import GROUPS, distance_bins, ranked_above
from tests.report.small import FEW


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A student that never learned, with its teacher and a log of its bound beside it."""
    run = tmp_path_factory.mktemp("student")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=10,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(run / "teacher")
    ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.4] * 3, image_std=[0.3] * 3).save_pretrained(
        run / "teacher"
    )
    vit = ViTForImageClassification.from_pretrained(run / "teacher").eval()
    get_ode_model(vit, steps=4, horizon=3.0, mlp_ratio=1.0, leak=1.0).save_pretrained(run)
    lines = [{"epoch": float(n), "bound": 1.0, "running": [2.0 / n, 1.5 / n, 1.0 / n]} for n in range(1, 7)]
    (run / "bound.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "recipe.yaml").write_text("stopping: {patience: 2}\nteacher: ''\ndata: {source: digits}\n")
    (run / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": n, "seconds": 1.0, "epoch": float(n), "eval_accuracy": n / 10}) + "\n"
            for n in range(1, 7)
        )
    )
    return analyse(run, limit=40, sizes=FEW)


def test_distances_and_answers_of_both(report):
    teacher = report.numbers["teacher"]
    assert len(teacher["distances"]) == len(teacher["groups"]) == 40
    assert len(teacher["by_layer"]["median"]) == 3
    assert teacher["token"] == "CLS"
    assert not teacher["alignment"]["measured"], "the folder holds no alignment.json"
    counts = [teacher["groups"].count(number) for number in range(len(GROUPS))]
    assert teacher["top1"]["hits"] == counts[0] + counts[1]
    assert teacher["student_top1"]["hits"] == counts[0] + counts[2]
    assert sum(each["images"] for each in teacher["bins"]) == 40


def test_their_pictures_are_on_the_page(report):
    page = report.page.read_text()
    for name in ("both", "layers", "correctness", "bins", "stop", "tracking"):
        assert f'<figure id="{name}">' in page
        assert (report.folder / "figures" / f"{name}.png").stat().st_size > 1000
    assert "evenly spaced" in page


def test_where_training_could_have_stopped(report):
    found = report.numbers["stopping"]
    assert found["stop"] == 4.0, "below from the third evaluation on, and patient for two"
    assert found["score_at_stop"] == pytest.approx(0.4)
    assert found["score_at_end"] == pytest.approx(0.6)


def test_patience_begins_again_when_a_layer_rises():
    below, above = {"bound": 1.0, "running": [0.5]}, {"bound": 1.0, "running": [1.5]}
    lines = [{"epoch": n, **each} for n, each in enumerate([below, above, below, below])]
    assert stopping_epoch(lines, 1) == 0
    assert stopping_epoch(lines, 2) == 3
    assert stopping_epoch(lines, 3) is None


def test_bins_hold_every_image_once():
    distances = torch.tensor([1.0, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    bins = distance_bins(distances, torch.arange(12) % 4)
    assert sum(each["images"] for each in bins) == 12
    assert all(sum(each[name] for name in GROUPS) == each["images"] for each in bins)


def test_what_distance_tells():
    assert ranked_above(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0])) == 1.0
    assert ranked_above(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])) == 0.5
    assert ranked_above(torch.tensor([]), torch.tensor([1.0])) is None
