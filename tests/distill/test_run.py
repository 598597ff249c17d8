"""A whole distillation on digits, small."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from odevit import OdeStudent, OdeStudentConfig, load
from odevit.cli.commands import evaluate
from odevit.data.loading import load_data
from odevit.distill import teacher as teacher_module
from odevit.distill.alignment import Alignment
from odevit.distill.bound_stopping import BoundStopping
from odevit.distill.distill_task import comparison, distill_recipe
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.distill.teacher import Teacher
from odevit.surgery import surgery
from odevit.surgery import vit_spec as vit_spec
from odevit.train.folder import RunFolder
from odevit.train.record import read_metrics
from odevit.train.splits import evaluation_batches, load_run_data, read_data
from odevit.train.trainer import OdeViTTrainer
from tests.train.start import begin, finish, together, words

SMALL = {"device": "cpu", "train.epochs": 2, "train.evaluate_every": 1, "train.batch_size": 128, "train.log_every": 10}


def distill(then=None, **settings):
    """One field in one part, as where the teacher is trained here; tests/distill/test_phases.py has the rest.

    The digits, as a teacher's processor makes them, are decoded for the first run and kept for the others.
    """
    plain = {"student.vector_knots": "null", "student.init": "spectral"}
    if "teacher" in settings:
        plain["cache"] = settings["teacher"].parent / "decoded"
    settings = {"phases": "none", "train.optimizer": "adamw", **plain, **settings}
    return distill_recipe(compose_distillation(words(settings)), then=then)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A tiny Hugging Face ViT for digits, in a folder as on the hub."""
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=10,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.4] * 3, image_std=[0.3] * 3).save_pretrained(
        folder
    )
    return folder


def test_distill_of_a_hugging_face_vit_writes_student_record_and_card(vit, tmp_path, capsys):
    before = load_file(vit / "model.safetensors")
    folder = distill(
        teacher=vit, compare=False, out=tmp_path / "run", **SMALL, **{"student.steps": 3, "train.steps": [3, 6]}
    )
    after = load_file(vit / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    record = json.loads((folder / "record.json").read_text())
    assert record["teacher"]["nfe"] == 3
    student, teacher = OdeStudent.from_pretrained(folder), Teacher(str(vit))
    test = evaluation_batches(load_run_data(folder, None, student), "test")
    same = [student(b["pixel_values"]).logits.argmax(-1) == teacher(b["pixel_values"]).logits.argmax(-1) for b in test]
    assert record["agreement"] == torch.cat(same).double().mean().item()
    assert sum(p.numel() for p in student.parameters()) == record["params"]
    assert len(Alignment.load(folder / "alignment.json").distances) == 3
    assert [row["model"] for row in comparison(folder)] == ["teacher", "student distilled"]
    assert comparison(folder)[0]["images"] == record["images"] == 359, "the test split of the digits"
    printed = capsys.readouterr().out
    assert printed.count("  agreement with the teacher ") == 2, "what it is selected by, after each epoch"
    assert "validation " not in printed
    card = (folder / "README.md").read_text()
    assert "359 images" in card
    assert f"{record['agreement']:.2%}" in card
    assert f"{record['params']:,}" in card
    losses = [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
    assert losses[-1] < losses[0]


def test_distill_without_a_teacher_trains_one_and_compares(tmp_path):
    small = {"teacher_train.epochs": 1, "model.hidden_size": 16, "model.num_attention_heads": 2, "model.steps": 2}
    steps = {"train.steps": [2, 4], "student.steps": 4, "student.registers": 2}
    folder = distill(out=tmp_path / "run", labels=0.08, **SMALL | {"train.batch_size": 64}, **small, **steps)
    rows = json.loads((folder / "comparison.json").read_text())
    assert [row["labels"] for row in rows] == [1295, 100, 0]
    scratch, student = (read_metrics(folder / part / "metrics.jsonl")[-1] for part in ("scratch", "."))
    assert scratch["step"] == student["step"], "as many steps, on fewer images"
    assert [row["model"] for row in rows] == ["teacher", "student from scratch", "student distilled"]
    assert rows[1]["params"] == rows[2]["params"], "the same architecture"
    assert rows[0]["agreement"] == 1.0


def test_resume_of_a_killed_distillation_gives_the_same_student(vit, tmp_path, monkeypatch):
    settings = {**SMALL, "teacher": vit, "compare": False, "train.steps": [3, 6], "student.steps": 3}
    whole = distill(out=tmp_path / "whole", **settings)
    ordinary = OdeViTTrainer.training_step

    def interrupted(self, model, inputs, num_items_in_batch=None):
        if self.state.global_step == 15:
            raise KeyboardInterrupt
        return ordinary(self, model, inputs, num_items_in_batch)

    with monkeypatch.context() as patch:
        patch.setattr(OdeViTTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distill(out=tmp_path / "cut", **settings)
    cut = distill(out=tmp_path / "cut", resume=True, **settings)
    a, b = load_file(whole / "model.safetensors"), load_file(cut / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"train.steps": [2], "objective.match": "nearest"},
            r"3 checkpoints .* do not fit into 2 steps; take at least 3 .* \(objective.path=last, with phases=none\)",
        ),
        ({"student.steps": 2, "stopping.bound": "curvature"}, r"3 checkpoints .* do not fit into 2 steps"),
        ({"objective.path": "none"}, r"objective.path='none'"),
        ({"compare": True}, r"compare=true is for teachers that are trained here"),
    ],
)
def test_distill_refuses_settings_that_do_not_fit(vit, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        distill(out=tmp_path / "run", **{**SMALL, "teacher": vit, "compare": False, **settings})


def test_distill_refuses_a_head_of_other_classes(tmp_path):
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=7,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    with pytest.raises(
        ValueError, match=r"the data has 10 .* the teacher has 7 \(LABEL_0.*; train a head .* head_only=true"
    ):
        distill(out=tmp_path / "run", teacher=tmp_path / "vit", compare=False, **SMALL)


def test_distill_refuses_a_teacher_without_a_head(vit, tmp_path):
    ViTForImageClassification.from_pretrained(vit).vit.save_pretrained(tmp_path / "body")
    with pytest.raises(ValueError, match=r"ViTModel without a classification head; .* head_only=true"):
        distill(out=tmp_path / "run", teacher=tmp_path / "body", compare=False, **SMALL)


def test_distill_refuses_a_teacher_without_hidden_states(tmp_path):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "resnet")
    with pytest.raises(ValueError, match=r"a teacher without hidden states: ResNet.*Choose a Vision Transformer"):
        distill(out=tmp_path / "run", teacher=tmp_path / "resnet", compare=False, **SMALL)


def test_normalize_takes_the_teachers_statistics_and_check_pixels_refuses_others(vit):
    """Statistics that differ are no error here, for the images are not normalised yet: the teacher's are taken."""
    recipe = compose_distillation([f"teacher={vit}", "compare=false"])
    teacher = Teacher(str(vit))
    own = read_data(recipe, teacher.vit_spec.size[0])
    data = teacher.normalize(own)
    assert (data.mean, data.std) == ((0.4,) * 3, (0.3,) * 3)
    assert own.mean != data.mean
    teacher.check_pixels(data.mean, data.std)
    with pytest.raises(ValueError, match=r"normalise the data as the teacher wants it: mean=\[0.4"):
        teacher.check_pixels(own.mean, own.std)


def test_distill_with_path_last_accepts_fewer_steps_than_layers(vit, tmp_path):
    settings = {"objective.path": "last", "student.steps": 2, "train.steps": [2]}
    folder = distill(out=tmp_path / "run", teacher=vit, compare=False, **SMALL, **settings)
    assert json.loads((folder / "record.json").read_text())["nfe"] == 2


def test_distill_loads_inspects_and_validates_once(vit, tmp_path, monkeypatch):
    """Also when a report follows: it gets the student with its best weights, the teacher, the data, the alignment."""
    counts = {}

    def count(owner, name, key):
        ordinary = getattr(owner, name)

        def counted(*args, **kwargs):
            counts[key] = counts.get(key, 0) + 1
            return ordinary(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for module in (vit_spec, surgery, teacher_module):
        count(module, "inspect_vit", "examined")
    count(teacher_module, "load_vit", "teacher loaded")
    count(OdeStudent, "__init__", "student made")
    count(OdeStudentConfig, "problems", "configuration validated")
    count(DistillRecipe, "problems", "recipe validated")
    finished = []
    settings = {"student.steps": 3, "train.steps": [3, 6], "train.epochs": 1}
    folder = distill(finished.append, teacher=vit, compare=False, out=tmp_path / "run", **{**SMALL, **settings})
    once = ("examined", "teacher loaded", "student made", "recipe validated")
    assert {key: counts[key] for key in once} == dict.fromkeys(once, 1)
    assert counts["configuration validated"] <= 2, "as it was written, and as the teacher completes it"
    (task,) = finished
    assert (task.alignment, task.teacher) == (task.network.alignment, task.network.teacher)
    saved = load(folder).state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in task.student.state_dict().items())
    assert {*RunFolder(folder).registered, "manifest.json"} == {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("bound", ["curvature", "weights"])
@pytest.mark.parametrize("lipschitz", [0.5, 0.0])
def test_bound_stopping_writes_and_draws_errors_and_bound(vit, tmp_path, bound, lipschitz):
    settings = {"stopping.bound": bound, "stopping.lipschitz": lipschitz, "train.steps": [3], "student.steps": 3}
    folder = distill(teacher=vit, compare=False, out=tmp_path / "run", **SMALL, **settings)
    lines = [json.loads(line) for line in (folder / "bound.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert len(lines[0]["errors"]) == 3
    assert all(line["bound"] > 0 for line in lines)
    if lipschitz:
        assert {line["lipschitz"] for line in lines} == {lipschitz}
    else:
        assert lines[0]["lipschitz"] != lines[1]["lipschitz"], "measured, at weights that move"
    assert (folder / "bound.png").exists()


def test_training_stops_when_all_errors_are_below_the_bound(vit, tmp_path, monkeypatch):
    measured = iter([([5.0, 5.0], 1.0, 0.5), ([0.5, 0.9], 1.0, 0.5), ([0.5, 0.9], 1.0, 0.5), ([0.1, 0.1], 1.0, 0.5)])
    monkeypatch.setattr(BoundStopping, "measure", lambda self: next(measured))
    settings = {"stopping.bound": "curvature", "stopping.patience": 2, "stopping.window": 1, "train.steps": [3]}
    folder = distill(
        teacher=vit,
        compare=False,
        out=tmp_path / "run",
        **{**SMALL, "train.epochs": 9},
        **settings,
        **{"student.steps": 3},
    )
    assert len((folder / "bound.jsonl").read_text().splitlines()) == 3


LABELS_LATER = {"objective.cross_entropy": 1, "objective.cross_entropy_from": 0.5, "objective.unfreeze_head": True}


@pytest.mark.parametrize("settings", [{"phases": "default", "knots": 2}, {**LABELS_LATER, "objective.logits": 0}])
def test_two_processes_have_the_losses_of_one(vit, tmp_path, settings):
    """But for variances, which are of each one's images. Also where a head has no gradient before labels count."""
    off = {f"data.augmentation.{name}": 0 for name in ("mix_probability", "mixup", "cutmix", "crop")}
    plain = {"train.log_every": 1, "train.precision": "fp32", "data.augmentation.flip": False, **off}
    common = {"phases": "none", "train.optimizer": "adamw", **SMALL, **plain, "teacher": vit, "data": "digits"}
    found = []
    for number in (1, 2):
        folder, log = tmp_path / f"of-{number}", tmp_path / f"{number}.log"
        arguments = words({**common, "out": folder, **settings})
        finish(together(log, arguments, number, "distill") if number > 1 else [begin(log, arguments, "distill")], log)
        found.append(losses_of(folder))
    assert len(found[0]) == len(found[1]) == 20
    assert found[1] == pytest.approx(found[0], rel=0.1)


def losses_of(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]


def test_student_of_a_teacher_without_processor_saves_the_datas_pixel_statistics(vit, tmp_path):
    ViTForImageClassification.from_pretrained(vit).save_pretrained(tmp_path / "teacher")
    folder = distill(teacher=tmp_path / "teacher", compare=False, out=tmp_path / "run", **SMALL)
    student = load(folder)
    assert student.config.image_mean == pytest.approx(list(load_data("digits").mean), rel=1e-3)
    assert evaluate(folder, limit=8)[0].score.images == 8
