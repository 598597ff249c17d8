"""The section about a student and its teacher, and early stopping by a bound."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from odevit import get_ode_model
from odevit.analysis.significance import Proportion, mann_whitney, significant_side
from odevit.distill.teacher import Teacher
from odevit.report.analysis import analyze
from odevit.report.early_stopping import stopping_epoch
from odevit.report.section import draw_all, to_builtins, write_page
from odevit.report.study import Study
from odevit.report.teacher_match import GROUPS, TeacherMatch, distance_bins, nearness
from tests.report.alone import pictures
from tests.report.small import FEW, sample_of
from tests.report.small import images as small_images
from tests.zoo import make

ABOUT = {
    "model": {"kind": "student", "parameters": 1, "horizon": 1.0, "steps": 1, "solver": "rk4", "leak": 0.0},
    "data": {"images": 1, "available": 1, "split": "test", "source": "digits", "asked": None},
    "sweep": {"top1": Proportion(1, 1).to_dict()},
}
"""What the lead of a page tells."""


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
    return analyze(run, limit=40, sizes=FEW)


def test_analyze_of_a_diverging_student_says_so_on_the_page(report, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(report.folder.parent, run, ignore=shutil.ignore_patterns("analysis"))
    weights = load_file(run / "model.safetensors")
    field = {name: 1e12 * value if ".field." in name else value for name, value in weights.items()}
    assert any(".field." in name for name in field)
    save_file(field, run / "model.safetensors", metadata={"format": "pt"})
    found = analyze(run, limit=12, sizes=FEW)
    teacher, page = found.numbers["teacher"], found.page.read_text()
    assert (teacher["finite"]["hits"], teacher["agreement"]["hits"], teacher["student_top1"]["hits"]) == (0, 0, 0)
    assert "On 12 of 12 images the student diverges." in " ".join(page.split())
    assert not {"both", "layers", "correctness", "bins"} & set(pictures(page))
    (verdict,) = [each for each in found.verdicts if each.question == TeacherMatch.title]
    assert verdict.answer == "no"


def test_teacher_match_counts_diverged_images_and_does_not_draw_them(tmp_path):
    torch.manual_seed(0)
    vit = make("vit-classifier")
    teacher, student = Teacher(vit), get_ode_model(vit, steps=3)
    sample = sample_of(student, small_images(6, labels=2))
    for chunk in sample.chunks:
        chunk["x0"][0] = torch.nan
    numbers = to_builtins(TeacherMatch().measure(Study("run", student, sample, teacher)))
    told = numbers["teacher"]
    assert (told["images"], told["finite"]["hits"], told["agreement"]["count"]) == (6, 4, 6)
    assert len(told["distances"]) == len(told["groups"]) == len(told["norms"]) == 4
    assert all(distance is not None for distance in told["distances"])
    assert told["paths"] is None
    figures = draw_all([TeacherMatch()], numbers, torch.rand(4, 3, 16, 16))
    assert set(figures) == {"layers", "correctness", "bins"}
    numbers |= {"verdicts": [], "thresholds": [], **ABOUT}
    path = write_page(tmp_path / "page.html", "", "analysis.html.j2", [TeacherMatch()], numbers, figures)
    page = " ".join(path.read_text().split())
    assert "On 2 of 6 images the student diverges." in page
    assert "the student's step for that layer; 4 images." in page


def test_teacher_numbers_have_distances_and_answers_of_all_images(report):
    teacher = report.numbers["teacher"]
    assert len(teacher["distances"]) == len(teacher["groups"]) == 40
    assert len(teacher["by_layer"]["median"]) == 3
    assert teacher["token"] == "CLS"
    assert set(teacher["by_token"]) == {"cls", "patches"}
    assert teacher["by_token"]["cls"]["median"] == teacher["by_layer"]["median"]
    assert not teacher["alignment"]["measured"], "the folder holds no alignment.json"
    counts = [teacher["groups"].count(number) for number in range(len(GROUPS))]
    assert teacher["top1"]["hits"] == counts[0] + counts[1]
    assert teacher["student_top1"]["hits"] == counts[0] + counts[2]
    assert sum(each["images"] for each in teacher["bins"]) == 40


def test_relative_distances_are_divided_by_the_teachers_norm(report):
    teacher, relative = report.numbers["teacher"], report.numbers["teacher"]["relative"]
    distances, norms = torch.tensor(teacher["distances"]), torch.tensor(teacher["norms"])
    torch.testing.assert_close(torch.tensor(relative["distances"]), distances / norms, rtol=1e-4, atol=0)
    assert relative.keys() <= teacher.keys(), "what is said of one distance is said of the other"
    assert relative["by_layer"]["median"][-1] == pytest.approx((distances / norms).quantile(0.5).item(), rel=1e-4)
    assert len(relative["by_layer"]["right_is_nearer"]) == 3
    assert sum(each["images"] for each in relative["bins"]) == 40


def test_caption_counts_layers_that_are_nearer_and_farther(tmp_path):
    """At the first layer all is alike; at the second the distance is larger where both are right, the norm yet more."""
    groups = torch.arange(80) % 4
    right, noise = groups == 0, torch.rand(80, generator=torch.Generator().manual_seed(0))
    distances, norms = torch.stack([noise, noise + 2.0 * right]), torch.stack([1 + 0 * noise, 1.0 + 39.0 * right])
    absolute, relative = (nearness(each, each, groups, right) for each in (distances, distances / norms))
    teacher = {
        "images": 80, "layers": 2, "alignment": {"kind": "arc", "measured": True}, **absolute, "relative": relative,
        "right_has_larger_norm": mann_whitney(norms[-1][right], norms[-1][~right]),
    }  # fmt: skip
    numbers = {"teacher": teacher, "verdicts": [], "thresholds": [], **ABOUT}
    path = write_page(tmp_path / "page.html", "", "analysis.html.j2", [TeacherMatch()], numbers, {"correctness": b""})
    page = " ".join(path.read_text().split())
    assert "nearer at 0 and farther at 1 of 2 layers by |x − h|, " in page
    assert "and nearer at 1 and farther at 0 by |x − h| / |h|" in page
    assert "100.0% of all pairs" in page


def test_nearness_may_change_its_sign_when_divided_by_norms():
    """Distances of 10% where both are right and of 20% elsewhere; the norm is larger where both are right."""
    norms = torch.linspace(4.0, 5.0, 30).repeat(2) * torch.tensor([3.0, 1.0]).repeat_interleave(30)
    groups = torch.tensor([0, 3]).repeat_interleave(30)
    relative = torch.tensor([0.1, 0.2]).repeat_interleave(30)
    absolute, by_norm = (nearness(d[None], d[None], groups, groups == 0) for d in (relative * norms, relative))
    assert absolute["right_is_nearer"]["value"] == 0.0
    assert by_norm["right_is_nearer"]["value"] == 1.0
    assert [significant_side(each["right_is_nearer"]) for each in (absolute, by_norm)] == [-1, 1]
    assert by_norm["by_layer"]["right_is_nearer"] == [by_norm["right_is_nearer"]]
    assert nearness(relative[None, :30], relative[None, :30], groups[:30], groups[:30] == 0)["right_is_nearer"] is None


def test_mann_whitney_error_is_that_of_chance():
    draws = torch.rand(2000, 30, generator=torch.Generator().manual_seed(0))
    found = [mann_whitney(each[:10], each[10:]) for each in draws]
    values = torch.tensor([each["value"] for each in found])
    assert values.mean().item() == pytest.approx(0.5, abs=0.01)
    assert values.std().item() == pytest.approx(found[0]["error"], rel=0.05)
    assert significant_side(mann_whitney(torch.tensor([2.0]), torch.tensor([1.0]))) == 0, "one pair proves nothing"


def test_report_page_shows_figures_of_student_and_teacher(report):
    page = report.page.read_text()
    for name in ("both", "layers", "correctness", "bins", "stop", "tracking"):
        assert f'<figure id="{name}">' in page
        assert (report.folder / "figures" / f"{name}.png").read_bytes() == pictures(page)[name]
    assert "evenly spaced" in page
    assert "A distilled student of" in page


def test_stopping_numbers_find_the_epoch_and_scores(report):
    found = report.numbers["stopping"]
    assert found["stop"] == 4.0, "below from the third evaluation on, and patient for two"
    assert found["score_at_stop"] == pytest.approx(0.4)
    assert found["score_at_end"] == pytest.approx(0.6)


def test_stopping_epoch_restarts_patience_when_a_layer_rises():
    below, above = {"bound": 1.0, "running": [0.5]}, {"bound": 1.0, "running": [1.5]}
    lines = [{"epoch": n, **each} for n, each in enumerate([below, above, below, below])]
    assert stopping_epoch(lines, 1) == 0
    assert stopping_epoch(lines, 2) == 3
    assert stopping_epoch(lines, 3) is None


def test_distance_bins_count_every_image_once():
    distances = torch.tensor([1.0, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    bins = distance_bins(distances, torch.arange(12) % 4)
    assert sum(each["images"] for each in bins) == 12
    assert all(sum(each[name] for name in GROUPS) == each["images"] for each in bins)


def test_nearness_ranks_disagreement_and_correctness():
    assert mann_whitney(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]))["value"] == 1.0
    assert mann_whitney(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))["value"] == 0.5
    assert mann_whitney(torch.tensor([]), torch.tensor([1.0])) is None
