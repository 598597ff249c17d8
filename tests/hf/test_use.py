"""What people do with a ViT of transformers, done with ours."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

from odevit import OdeViTForImageClassification
from odevit.core.attention import ATTENTIONS
from tests.hf.family import close, first, member, pictures
from tests.hf.two_processes import gradients_of
from tests.pictures import SHAPES, drawn, folder_of_shapes
from tests.tiny import tiny_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("chosen", [*({"attention": name} for name in ATTENTIONS), {"knots": 2, "blend": "constant"}])
def test_lora(chosen, tmp_path):
    """Trained, saved, loaded and merged: an adapter on the projections of the field, whichever attention it has."""
    peft = pytest.importorskip("peft", reason="pip install peft")
    model = tiny_model(**chosen)
    model.save_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(r=4, target_modules=r".*\.[qkvo]_proj", modules_to_save=["classifier"])
    adapted, images, labels = peft.get_peft_model(model, settings), pictures(), torch.arange(3)
    before = adapted(images).logits
    optimiser = torch.optim.SGD([each for each in adapted.parameters() if each.requires_grad], lr=0.1)
    for _ in range(5):
        adapted.train()(images, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    learned = adapted.eval()(images).logits
    assert (learned - before).abs().max() > 1e-3
    adapted.save_pretrained(tmp_path / "adapter")
    base = OdeViTForImageClassification.from_pretrained(tmp_path / "base")
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(again(images).logits, learned, rtol=0, atol=1e-5)
    merged = again.merge_and_unload()
    assert isinstance(merged, OdeViTForImageClassification)
    torch.testing.assert_close(merged(images).logits, learned, rtol=0, atol=1e-5)
    assert not any("lora" in key for key in merged.state_dict())


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_int8_weights(attention, tmp_path):
    """torchao, weight-only, at loading: the answers stay, and so do the shapes."""
    pytest.importorskip("torchao", reason="pip install torchao (it writes to stderr on import, so no extra has it)")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    model, images = tiny_model(attention=attention), pictures()
    model.save_pretrained(tmp_path)
    settings = TorchAoConfig(Int8WeightOnlyConfig())
    small = OdeViTForImageClassification.from_pretrained(tmp_path, quantization_config=settings).eval()
    inside = [type(module.weight).__name__ for key, module in small.named_modules() if key.endswith("_proj")]
    assert inside
    assert all(kind != "Parameter" for kind in inside)
    torch.testing.assert_close(small(images).logits, model(images).logits, rtol=0, atol=0.05)


def learnable(count=24):
    """Pictures whose label is which channel is bright."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    pixels = torch.randn(count, 3, 16, 16, generator=random)
    pixels[torch.arange(count), labels] += 2
    return [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, labels, strict=True)]


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer_of(model, folder, **settings):
    chosen = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "label_smoothing_factor": 0.1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "lr_scheduler_type": "constant",
        **settings,
    }
    examples = learnable()
    arguments = TrainingArguments(str(folder), **chosen)
    return Trainer(model, arguments, train_dataset=examples, eval_dataset=examples, compute_metrics=accuracy)


@pytest.mark.parametrize("name", ["classifier", "student"])
def test_trainer(name, tmp_path):
    """Evaluation, metrics, label smoothing, the best model, predictions, and a resumed training that is the same."""
    whole = trainer_of(member(name), tmp_path / "whole", load_best_model_at_end=True, metric_for_best_model="accuracy")
    whole.train()
    scored = whole.evaluate()
    assert scored["eval_accuracy"] == max(log["eval_accuracy"] for log in whole.state.log_history if "eval_loss" in log)
    predicted = whole.predict(whole.eval_dataset)
    assert isinstance(predicted.predictions, np.ndarray)
    assert predicted.predictions.shape == (24, 5)
    assert accuracy(predicted)["accuracy"] == scored["eval_accuracy"]
    everything = whole.predict(whole.eval_dataset, ignore_keys=[]).predictions
    assert np.array_equal(everything[0] if isinstance(everything, tuple) else everything, predicted.predictions)

    straight = trainer_of(member(name), tmp_path / "straight")
    straight.train()
    resumed = trainer_of(member(name), tmp_path / "straight")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight/checkpoint-3"))
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        close(other, one)


def test_trainer_evaluates_in_half_precision(tmp_path):
    trainer = trainer_of(member("classifier"), tmp_path, bf16_full_eval=True, label_smoothing_factor=0.0)
    assert 0 <= trainer.evaluate()["eval_accuracy"] <= 1


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """What two processes found, with DDP and with FSDP2."""
    found = tmp_path_factory.mktemp("parallel")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.hf.two_processes", str(found)]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=240)
    return found


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes(strategy, parallel):
    """Each has half of the batch, and the gradients are those of one process with all of it."""
    expected, found = gradients_of(), torch.load(parallel / f"{strategy}.pt")
    assert set(found) == set(expected)
    for key, gradient in expected.items():
        close(found[key], gradient)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_disk_offload(attention, tmp_path):
    """The field lies on the disk between calls, and the answers are the same, each time."""
    model, images = tiny_model(attention=attention), pictures()
    model.save_pretrained(tmp_path / "model")
    places = {"odevit.embedding": "cpu", "odevit.depth": "disk", "odevit.norm": "cpu", "odevit.pooling": "cpu"}
    offloaded = OdeViTForImageClassification.from_pretrained(
        tmp_path / "model", device_map={**places, "classifier": "cpu"}, offload_folder=tmp_path / "disk"
    ).eval()
    weights = list(offloaded.odevit.depth.parameters())
    assert all(weight.is_meta for weight in weights)
    with torch.no_grad():
        expected = model(images).logits
        for _ in range(2):
            close(offloaded(images).logits, expected)


@pytest.mark.parametrize("name", ["classifier", "student"])
def test_sharded_weights(name, tmp_path):
    model = member(name)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    keys = [key for shard in shards for key in safe_open(shard, "pt").keys()]  # noqa: SIM118 (no mapping)
    assert sorted(keys) == sorted(index["weight_map"]) == sorted(model.state_dict())
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(first(again(pictures())), first(model(pictures())))


def test_bundled_name_everywhere():
    """With the name of the bundled model works what works with a folder, and no network is asked."""
    assert AutoConfig.from_pretrained("cifar10").hidden_size == 256
    picture = AutoImageProcessor.from_pretrained("cifar10")(drawn("circle", 0), return_tensors="pt")["pixel_values"]
    logits = AutoModelForImageClassification.from_pretrained("cifar10").eval()(picture).logits
    assert AutoModel.from_pretrained("cifar10").eval()(picture).last_hidden_state.shape == (1, 64, 256)
    best = pipeline("image-classification", "cifar10", device="cpu")(drawn("circle", 0))[0]
    assert best["score"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)


def test_finetuning_script(tmp_path, monkeypatch, capsys):
    """The user's script runs as printed, on a folder of pictures, and leaves a model that others can load."""
    folder_of_shapes(tmp_path / "pictures", 8, SHAPES[:2])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sys, "argv", ["finetune_with_trainer.py", str(tmp_path / "pictures"), str(tmp_path / "out")])
    runpy.run_path(str(EXAMPLES / "finetune_with_trainer.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "eval_accuracy" in printed
    model = OdeViTForImageClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "circle", 1: "cross"}


def test_segmentation_script():
    """Later states say more about where a disc is than the embedded image alone."""
    main = runpy.run_path(str(EXAMPLES / "segmentation.py"))["main"]
    start, solver_config = main(train=48, test=16, epochs=25).values()
    assert solver_config > start > 0.2
