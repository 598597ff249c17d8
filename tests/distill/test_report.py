"""The page of a distillation: what it says, what it draws, and that it needs nothing beside it."""

import re
from io import BytesIO

import pytest
import torch
from transformers import SiglipForImageClassification, SiglipVisionConfig

from odevit import verbs
from odevit.distill.alignment import Alignment
from odevit.distill.figures import draw_alignment, draw_distances, draw_paths
from odevit.distill.paths import pca_paths
from odevit.distill.report import outcome, side_by_side
from tests.page.alone import pictures, what_it_fetches

ROWS = [
    {"model": "teacher", "params": 1000, "nfe": 6, "milliseconds": 0.1, "top1": 0.9, "agreement": 1.0},
    {"model": "student from scratch", "params": 100, "nfe": 8, "milliseconds": 0.2, "top1": 0.85, "agreement": None},
    {"model": "student distilled", "params": 100, "nfe": 8, "milliseconds": 0.2, "top1": 0.8, "agreement": 0.875},
]


def test_the_outcome_is_said_as_it_is():
    said = outcome(ROWS, 40, supervised=False)
    assert "100 parameters, distilled without labels" in said
    assert "on 87.50% of 40 test images" in said
    assert "right on 80.00% of them, the teacher on 90.00%" in said
    assert "from scratch with labels on 85.00%" in said
    alone = outcome([ROWS[0], ROWS[2]], 40, supervised=True)
    assert "distilled with labels" in alone
    assert "scratch" not in alone


def test_the_table_has_a_row_for_each_model():
    lines = side_by_side(ROWS).split("<tr>")[2:]
    assert [re.findall(r"<td>(.*?)</td>", line)[0] for line in lines] == [row["model"] for row in ROWS]
    assert lines[1].endswith("<td></td></tr>"), "unknown is empty, not nought"


def test_what_was_measured_is_what_is_drawn():
    distances = torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]])
    figure = draw_distances({"CLS": distances}, {"CLS": 2 * distances})
    (axes,) = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["student, median image"] == [2.0, 4.0]
    assert drawn["if it stood still"] == [4.0, 8.0]
    assert axes.get_ylim()[0] == 0


def test_the_steps_that_meet_are_named():
    (axes,) = draw_alignment(Alignment("arc", (1.0, 1.0, 2.0)), steps=8, horizon=4.0).axes
    threads = {tuple(float(x) for x in line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2}
    assert threads == {(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (4.0, 4.0)}
    assert sorted(text.get_text() for text in axes.texts) == sorted(["0", "1", "2", "3", "0", "2", "4", "8"])


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_has_its_path_and_its_picture(channels):
    paths = pca_paths(torch.randn(7, 2, 6), torch.randn(4, 2, 6))
    figure = draw_paths(paths, (2, 4, 6), torch.rand(2, channels, 8, 8), ["cat", "dog"])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cat", "dog"]
    assert len(axes.artists) == 2
    figure.savefig(BytesIO())


def test_a_teacher_without_cls_has_a_report_too(tmp_path):
    """SigLIP has no CLS token: its patches are followed instead."""
    config = SiglipVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    whole = SiglipForImageClassification.config_class(vision_config=config.to_dict(), num_labels=10)
    torch.manual_seed(0)
    SiglipForImageClassification(whole).save_pretrained(tmp_path / "siglip")
    settings = {"train.epochs": 1, "train.steps": [2], "student.steps": 2, "objective.cls": 0.0, "student.registers": 3}
    folder = verbs.distill(teacher=tmp_path / "siglip", compare=False, device="cpu", out=tmp_path / "run", **settings)
    page = (folder / "report.html").read_text()
    assert set(pictures(page)) == {"paths", "distances", "alignment", "curves"}
    assert not what_it_fetches(page)
