"""A pretrained ViT learns the classes of other data, with its head alone or as a whole."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from odevit.distill.pretrained import PretrainedTask, train_pretrained
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.train.compose import compose_recipe
from odevit.train.runner import run
from odevit.train.trainer import OdeViTTrainer
from tests.train.start import words
from tests.zoo import make

SMALL = {"device": "cpu", "train.epochs": 2, "train.evaluate_every": 1, "train.batch_size": 128, "train.log_every": 10}


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
