"""What transformers and its friends ask of a model: embeddings, what to wrap, where to save, which names there are."""

import json
import socket
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    pipeline,
)
from transformers.utils import PushToHubMixin

from odevit import OdeViTConfig, OdeViTForImageClassification, OdeViTModel, get_ode_model
from odevit.hf.processor import OdeViTImageProcessor
from odevit.solvers import checkpointing
from tests.tiny import tiny_config, tiny_images, tiny_model

LABELS = torch.tensor([0, 1, 2])


def vit_student():
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return get_ode_model(ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **small))).eval()


@pytest.mark.parametrize("make", [tiny_model, lambda: OdeViTModel(tiny_config()), vit_student])
def test_input_embeddings_see_the_pixels(make):
    model, seen = make(), []
    before = model(tiny_images())[0]
    model.get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    model(tiny_images())
    assert seen == [(3, 3, 16, 16)]
    other = make().get_input_embeddings()
    model.set_input_embeddings(other)
    assert model.get_input_embeddings() is other
    assert model(tiny_images())[0].shape == before.shape


@pytest.mark.parametrize("make", [tiny_model, lambda: tiny_model(depth="stacked"), vit_student])
def test_no_split_modules_are_the_modules_that_are_called(make):
    """Whoever wraps by these names (FSDP, device_map) hangs hooks on forward, and reaches all weights of the field."""
    model, called = make(), set()
    units = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    for unit in units:
        unit.register_forward_pre_hook(lambda module, _: called.add(module))
    model(tiny_images())
    assert called == set(units)
    inside = {id(p) for unit in units for p in unit.parameters()}
    assert {id(p) for p in model.depth.parameters()} <= inside


def test_sharded_by_these_names_gradients_are_the_same(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        plain, images = tiny_model(attention="l2").train(), tiny_images()
        sharded = OdeViTForImageClassification(plain.config).train()
        sharded.load_state_dict(plain.state_dict())
        mesh = init_device_mesh("cpu", (1,))
        for module in list(sharded.modules()):
            if type(module).__name__ in plain._no_split_modules:
                fully_shard(module, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        for model in (plain, sharded):
            model(images, LABELS).loss.backward()
        for ours, theirs in zip(plain.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(theirs.grad.full_tensor(), ours.grad)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("make", [tiny_model, vit_student])
def test_an_upload_has_the_processor(make, tmp_path, monkeypatch):
    uploaded = {}

    def commit(self, working_dir, repo_id, files_timestamps, **_):
        uploaded.update({path.name: files_timestamps.get(path.name) for path in tmp_path.iterdir()})

    hub = SimpleNamespace(create_repo=lambda *_, **__: SimpleNamespace(repo_id="me/x"))
    monkeypatch.setattr("transformers.modeling_utils.hf_api", lambda: hub)
    monkeypatch.setattr(PushToHubMixin, "_upload_modified_files", commit)
    card = SimpleNamespace(save=lambda path: None)  # transformers would look for one on the hub
    monkeypatch.setattr("transformers.modeling_utils.create_and_tag_model_card", lambda *_, **__: card)
    model = make()
    if model.own_processor() is None:
        model.set_original(None, OdeViTImageProcessor())
    for _ in range(2):  # into a new folder, and into one where it has been before
        uploaded.clear()
        model.save_pretrained(tmp_path, push_to_hub=True)
        assert uploaded["preprocessor_config.json"] is None, "new since the upload began"


def test_save_pretrained_keeps_a_processor_of_another_origin(tmp_path, caplog):
    theirs = OdeViTImageProcessor(image_mean=[0.1, 0.2, 0.3], size={"shortest_edge": 20})
    theirs.save_pretrained(tmp_path)
    before = (tmp_path / "preprocessor_config.json").read_bytes()
    tiny_model().save_pretrained(tmp_path)
    assert (tmp_path / "preprocessor_config.json").read_bytes() == before
    assert "trained with another one; delete it" in caplog.text


def test_our_own_processor_follows_the_model(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    tiny_model(image_size=32, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    about = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert (about["image_mean"], about["size"]) == ([0.1, 0.2, 0.3], {"shortest_edge": 32})


def test_save_pretrained_writes_nothing_outside_the_main_process(tmp_path):
    tiny_model().save_pretrained(tmp_path / "a", False)
    assert not list(tmp_path.glob("a/*"))


def test_bundled_names_work_wherever_a_folder_does(monkeypatch):
    def refuse(*_, **__):
        raise OSError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert isinstance(AutoConfig.from_pretrained("cifar10"), OdeViTConfig)
    assert OdeViTConfig.from_pretrained("cifar10").num_labels == 10
    assert isinstance(AutoModel.from_pretrained("cifar10"), OdeViTModel)
    model = AutoModelForImageClassification.from_pretrained("cifar10")
    processor = AutoImageProcessor.from_pretrained("cifar10")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 40, 3), dtype=np.uint8))
    with torch.no_grad():
        expected = model.eval()(**processor(picture, return_tensors="pt")).logits.softmax(-1)[0]
    found = pipeline("image-classification", "cifar10")([picture] * 3, top_k=1, batch_size=2)
    for answer in found:
        assert answer[0]["score"] == pytest.approx(expected.max().item(), abs=1e-5)


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    tiny_model().save_pretrained(tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    assert AutoConfig.from_pretrained("cifar10").num_labels == 5


def test_options_of_gradient_checkpointing_are_used():
    model, contexts = tiny_model(steps=4).train(), []

    def context_fn():
        contexts.append(1)
        return nullcontext(), nullcontext()

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"context_fn": context_fn})
    model(tiny_images(), LABELS).loss.backward()
    assert contexts


def test_use_reentrant_is_replaced_with_a_warning(monkeypatch):
    said = []
    monkeypatch.setattr(checkpointing.logger, "warning_once", said.append)
    model, images = tiny_model(steps=4).train(), tiny_images()
    model(images, LABELS).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model(images, LABELS).loss.backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)
    assert "use_reentrant=True is not possible" in said[0]


def test_vmap_over_images_gives_the_logits_of_the_batch():
    model, images = tiny_model(), tiny_images()
    mapped = torch.vmap(lambda image: model(image[None]).logits[0])(images)
    torch.testing.assert_close(mapped, model(images).logits)
