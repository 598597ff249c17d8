"""A whole distillation on digits, small; and a new head on a pretrained ViT."""

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
from odevit.distill.pretrained import PretrainedTask, train_pretrained
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.surgery import surgery
from odevit.surgery import vit_spec as vit_spec
from odevit.train.compose import compose_recipe
from odevit.train.folder import RunFolder
from odevit.train.record import read_metrics
from odevit.train.runner import run
from odevit.train.splits import evaluation_batches, load_run_data, read_data
from odevit.train.trainer import OdeViTTrainer
from tests.train.start import begin, finish, together, words
from tests.zoo import make

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


def test_train_pretrained_with_head_only_moves_only_the_head(vit, tmp_path):
    settings = {"teacher": vit, "head_only": True, "out": tmp_path / "run", **SMALL}
    folder = train_pretrained(compose_recipe(words(settings)))
    before, after = load_file(vit / "model.safetensors"), load_file(folder / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"classifier.weight", "classifier.bias"}
    assert (folder / "preprocessor_config.json").exists()
    assert Teacher(str(folder)).vit_spec.labels == 10
    record = json.loads((folder / "record.json").read_text())
    assert (record["nfe"], record["params"]) == (3, sum(value.numel() for value in after.values()))
    assert f"{record['top1']:.2%}" in (folder / "README.md").read_text()


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


def test_layer_decay_moves_early_layers_less(vit, tmp_path):
    settings = {"teacher": vit, "out": tmp_path / "run", "train.layer_decay": 0.5, "train.ema": 0, **SMALL}
    task = PretrainedTask(compose_recipe(words(settings)))
    run(task)
    rates = {name: task.rate_of(name) for name, _ in task.network.named_parameters()}
    assert [rate for name, rate in rates.items() if name.endswith("layernorm_before.weight")] == [0.25, 0.5, 1.0]
    assert rates["model.classifier.weight"] == rates["model.vit.layernorm.weight"] == 1.0
    assert rates["model.vit.embeddings.cls_token"] == 0.125
    before, after = load_file(vit / "model.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert Teacher(str(tmp_path / "run")).vit_spec.labels == 10
    # The optimiser divides every gradient by its size, so a parameter moves as far as its rate lets it.
    moved = {name: (after[name] - before[name]).abs().mean() for name in before}
    last = next(name for name in moved if name.endswith("2.layernorm_before.weight"))
    assert moved["vit.embeddings.cls_token"] < moved[last]


@pytest.mark.parametrize("with_head", [True, False])
@pytest.mark.parametrize("name", ["vit-classifier", "dinov2-classifier"])
def test_rate_of_rises_with_the_layers_with_and_without_a_head(name, with_head, tmp_path):
    model = make(name)
    (model if with_head else model.base_model).save_pretrained(tmp_path / "teacher")
    task = PretrainedTask(compose_recipe(words({"teacher": tmp_path / "teacher", "train.layer_decay": 0.5, **SMALL})))
    task.build()
    rates = {parameter: task.rate_of(parameter) for parameter, _ in task.network.named_parameters()}
    layers = task.network.solver_config.steps
    assert set(rates.values()) == {0.5**layer for layer in range(layers + 1)}
    assert all(rate == 0.5**layers for parameter, rate in rates.items() if "embeddings" in parameter)
    assert all(rate == 1 for parameter, rate in rates.items() if "classifier" in parameter)


def test_train_pretrained_resets_a_head_of_other_classes(vit, tmp_path):
    """As many classes do not make them the same: with their names, a training goes on where the last one ended."""
    train = {"teacher": vit, "head_only": True, "train.updates": 1, "train.learning_rate": 0, **SMALL}
    first = train_pretrained(compose_recipe(words({**train, "out": tmp_path / "first"})))
    again = train_pretrained(compose_recipe(words({**train, "teacher": first, "out": tmp_path / "again"})))
    given, drawn, kept = (load_file(run / "model.safetensors")["classifier.weight"] for run in (vit, first, again))
    assert not torch.equal(given, drawn), "LABEL_0, ... say nothing of digits"
    assert torch.equal(drawn, kept)


def test_head_first_moves_only_the_head(vit, tmp_path):
    settings = {"teacher": vit, "out": tmp_path / "run", "train.head_first": 1.0, **SMALL}
    folder = train_pretrained(compose_recipe(words(settings)))
    before, after = load_file(vit / "model.safetensors"), load_file(folder / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"classifier.weight", "classifier.bias"}


def test_student_of_a_teacher_without_processor_saves_the_datas_pixel_statistics(vit, tmp_path):
    ViTForImageClassification.from_pretrained(vit).save_pretrained(tmp_path / "teacher")
    folder = distill(teacher=tmp_path / "teacher", compare=False, out=tmp_path / "run", **SMALL)
    student = load(folder)
    assert student.config.image_mean == pytest.approx(list(load_data("digits").mean), rel=1e-3)
    assert evaluate(folder, limit=8)[0].score.images == 8


def test_head_first_warms_up_the_body_in_the_second_phase(vit, tmp_path, monkeypatch):
    """The rates are full when the head is ready, and weights that are worth keeping must not begin with them."""
    seen, ordinary = [], OdeViTTrainer.training_step

    def watched(self, *args):
        body = {name: weight.clone() for name, weight in self.network.named_parameters() if "classifier" not in name}
        seen.append((self.phase.name, max(group["lr"] for group in self.optimizer.param_groups), body))
        return ordinary(self, *args)

    monkeypatch.setattr(OdeViTTrainer, "training_step", watched)
    settings = {"teacher": vit, "out": tmp_path / "run", "train.head_first": 0.5, "train.warmup": 0.5, **SMALL}
    recipe = compose_recipe(words(settings))
    train_pretrained(recipe)
    names, rates, bodies = zip(*seen, strict=True)
    half = len(seen) // 2
    assert names == ("head",) * half + ("whole",) * (len(seen) - half)
    highest = recipe.train.learning_rate
    assert rates[half - 1] == pytest.approx(highest, rel=0.05), "the head is trained at its full rate to the end"
    assert rates[half] < 0.1 * highest
    assert max(rates[half:]) == pytest.approx(highest, rel=0.1)
    assert rates[-1] < 0.1 * highest
    held = [all(torch.equal(bodies[0][name], body[name]) for name in body) for body in bodies]
    assert all(held[: half + 1])
    assert not any(held[half + 2 :])


def test_layer_decay_and_head_first_are_refused_without_a_pretrained_vit(tmp_path):
    with pytest.raises(ConfigError, match=r"train.layer_decay and train.head_first are for a pretrained ViT"):
        compose_recipe(["train.layer_decay=0.5"]).check()
    restarts = ["teacher=X", "train.head_first=0.1", "train.schedule=cosine_with_restarts"]
    with pytest.raises(ConfigError, match=r"train.head_first=0.1 has a cosine .* leave out train.schedule=cosine_with"):
        compose_recipe(restarts).check()
    with pytest.raises(ConfigError, match=r"no trajectory to penalise; set train.jasmin=0"):
        compose_recipe(["teacher=X", "train.jasmin=1"]).check()
