"""The page of a distillation."""

import re

import pytest
import torch
from transformers import SiglipForImageClassification, SiglipVisionConfig

from odevit.distill.distill_task import distill_recipe
from odevit.distill.distillation import compose_distillation
from odevit.report.section import write_page
from odevit.report.student_page import draw_alignment, write_report
from tests.report.alone import pictures, what_it_fetches

ROWS = [
    {"model": "teacher", "params": 1000, "nfe": 6, "milliseconds": 0.1, "top1": 0.9, "agreement": 1.0},
    {"model": "student from scratch", "params": 100, "nfe": 8, "milliseconds": 0.2, "top1": 0.85, "agreement": None},
    {"model": "student distilled", "params": 100, "nfe": 8, "milliseconds": 0.2, "top1": 0.8, "agreement": 0.875},
]


@pytest.fixture
def told(tmp_path):
    def tell(rows, supervised=False):
        numbers = {"models": rows, "images": 40, "supervised": supervised, "seed": 3, "device": "a <CPU>"}
        return write_page(tmp_path / "page.html", "student", "student.html.j2", [], numbers, {}).read_text()

    return tell


def test_student_page_states_agreement_accuracy_and_labels(told):
    said = " ".join(told(ROWS).split())
    assert "100 parameters, distilled without labels" in said
    assert "on 87.50% of 40 test images" in said
    assert "right on 80.00% of them, the teacher on 90.00%, the same" in said
    assert "from scratch with labels on 85.00%." in said
    assert "on a &lt;CPU&gt;; one image of 40 is 2.50%" in said
    few = " ".join(told([ROWS[0], {**ROWS[1], "labels": 1040}, ROWS[2]]).split())
    assert "from scratch with 1,040 labels on 85.00%." in few
    alone = told([ROWS[0], ROWS[2]], supervised=True)
    assert "distilled with labels" in alone
    assert "scratch" not in alone


def test_student_page_has_a_table_row_per_model(told):
    lines = told(ROWS).split("<tr>")[2:]
    assert [re.findall(r"<td>(.*?)</td>", line)[0] for line in lines] == [row["model"] for row in ROWS]
    assert lines[1].strip().endswith("<td></td></tr>"), "unknown is empty, not nought"


def test_draw_alignment_connects_layers_with_their_steps():
    (axes,) = draw_alignment([0.0, 1.0, 2.0, 4.0], [n / 2 for n in range(9)], [0, 2, 4, 8]).axes
    threads = {tuple(float(x) for x in line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2}
    assert threads == {(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (4.0, 4.0)}
    assert sorted(text.get_text() for text in axes.texts) == sorted(["0", "1", "2", "3", "0", "2", "4", "8"])


def test_write_report_for_a_teacher_without_cls(tmp_path, capsys):
    """SigLIP has no CLS token: its patches are followed instead."""
    config = SiglipVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    whole = SiglipForImageClassification.config_class(vision_config=config.to_dict(), num_labels=10)
    torch.manual_seed(0)
    SiglipForImageClassification(whole).save_pretrained(tmp_path / "siglip")
    words = [
        *(f"teacher={tmp_path / 'siglip'}", f"out={tmp_path / 'run'}", "compare=false", "device=cpu", "train.epochs=1"),
        *("phases=none", "train.steps=[2]", "student.steps=2", "objective.cls=0.0", "student.registers=3"),
        "alignment.images=5000",
    ]
    folder = distill_recipe(compose_distillation(words), then=write_report)
    page = (folder / "report.html").read_text()
    assert set(pictures(page)) == {"both", "layers", "correctness", "bins", "alignment", "curves"}
    assert not what_it_fetches(page)
    assert "as in training (uniform)" in " ".join(page.split())
    trained_on = re.search(r"([\d,]+) images to train on", capsys.readouterr().out)[1]
    assert f"measured on {trained_on} training images" in " ".join(page.split()), "and not on 5,000"
