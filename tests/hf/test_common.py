"""What transformers' own common tests ask of every model, asked of ours."""

import copy
import json
import os

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig, PreTrainedModel, pipeline

from odevit import OdeViTForImageClassification, OdeViTModel
from tests.hf.family import FAMILY, OURS, STEPS, close, first, loss_of, member, only_tensors, pictures
from tests.pictures import drawn
from tests.tiny import tiny_config, tiny_model

every = pytest.mark.parametrize("name", FAMILY)
ours = pytest.mark.parametrize("name", OURS)


@every
def test_configuration_comes_back(name, tmp_path):
    config = member(name).config
    config.save_pretrained(tmp_path)
    for again in (
        type(config).from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        type(config).from_dict(config.to_dict()),
        copy.deepcopy(config),
    ):
        assert {**again.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
    assert json.loads(config.to_json_string())["model_type"] == config.model_type


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_save_and_load_in_every_dtype(name, dtype, tmp_path):
    """The folder keeps the precision, and pixels in single precision are what every processor makes."""
    model = member(name).to(dtype)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype="auto").eval()
    images = pictures()
    assert again.dtype == dtype
    close(first(again(images)), first(model(images)), max((dtype, torch.float32), key=lambda d: torch.finfo(d).eps))
    single = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert {parameter.dtype for parameter in single.parameters()} == {torch.float32}


@every
def test_a_batch_is_its_images_one_by_one(name):
    model, images = member(name), pictures(4)
    alone = torch.cat([first(model(image[None])) for image in images])
    close(first(model(images)), alone)
    assert torch.equal(first(model(images)), first(model(images))), "evaluation draws nothing"


@every
def test_hidden_states_and_attentions(name):
    model, images = member(name), pictures()
    output = model(images, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == STEPS + 1
    assert len(output.attentions) == STEPS
    assert torch.allclose(output.attentions[0].sum(-1), torch.ones(()))
    assert model(images).hidden_states is None
    assert model(images).attentions is None
    if name != "student":  # whose configuration is its teacher's in this
        plain = member(name)
        plain.set_attn_implementation("eager")
        plain.config.output_hidden_states = plain.config.output_attentions = True
        assert len(plain(images).hidden_states) == STEPS + 1
        assert len(plain(images).attentions) == STEPS


@every
def test_states_and_maps_retain_their_gradients(name):
    model = member(name)
    output = model(pictures(), output_hidden_states=True, output_attentions=True)
    kept = [output.hidden_states[0].requires_grad_(), output.hidden_states[-2], output.attentions[0]]
    kept = [tensor for tensor in kept if not tensor.is_leaf]
    for tensor in kept:
        tensor.retain_grad()
    first(output).sum().backward()
    assert len(kept) >= 2
    assert all(tensor.grad is not None for tensor in kept)


@every
def test_outputs_are_tensors_and_a_tuple_of_them(name):
    model, images = member(name), pictures()
    asked = {"output_hidden_states": True, "output_attentions": True}
    output = model(images, **asked)
    assert only_tensors(output)
    assert only_tensors(output.to_tuple())
    assert output.trajectory.ok
    assert output.stats.nfe == STEPS
    if name != "student":
        assert torch.equal(model(images, **asked, return_dict=False)[0], first(output))


@ours
@pytest.mark.parametrize(
    ("kind", "count", "labels", "expected"),
    [
        ("single_label_classification", 5, torch.tensor([0, 4, 2]), F.cross_entropy),
        ("multi_label_classification", 5, torch.eye(5)[[0, 4, 2]], F.binary_cross_entropy_with_logits),
        ("regression", 2, torch.tensor([[0.5, 1.0], [2.0, 0.0], [1.0, 1.0]]), F.mse_loss),
        ("regression", 1, torch.tensor([0.5, 2.0, 1.0]), lambda x, y: F.mse_loss(x.squeeze(), y)),
    ],
)
def test_problem_types(name, kind, count, labels, expected):
    model = tiny_model(num_labels=count, problem_type=kind, depth=member(name).config.depth)
    output = model(pictures(), labels=labels)
    torch.testing.assert_close(output.loss, expected(output.logits, labels))
    model.train()(pictures(), labels=labels).loss.backward()
    assert model.classifier.weight.grad.abs().sum() > 0


@ours
def test_another_number_of_labels(name, tmp_path):
    model = member(name)
    model.save_pretrained(tmp_path)
    other = type(model).from_pretrained(tmp_path, num_labels=9, ignore_mismatched_sizes=True)
    assert other(pictures()).logits.shape == (3, 9)
    assert other.classifier.weight.abs().max() > 0
    for (key, mine), theirs in zip(model.odevit.state_dict().items(), other.odevit.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), key


def test_missing_weights_are_initialised(tmp_path):
    """A head that a checkpoint lacks begins as in a new model, whatever the memory held."""
    encoder = member("encoder")
    encoder.save_pretrained(tmp_path)
    model, info = OdeViTForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert model.classifier.bias.abs().max() == 0
    assert 0 < model.classifier.weight.abs().max() < 10 * model.config.initializer_range
    with torch.device("meta"):
        assert next(OdeViTModel(tiny_config()).parameters()).is_meta


@every
@pytest.mark.parametrize("where", [{"": "cpu"}, "auto"], ids=str)
def test_device_map(name, where, tmp_path):
    model, images = member(name), pictures()
    model.save_pretrained(tmp_path)
    placed = type(model).from_pretrained(tmp_path, device_map=where).eval()
    close(first(placed(images)), first(model(images)))


class BlendCache(saved_tensors_hooks):
    """How many numbers autograd keeps for the backward pass."""

    def __init__(self):
        self.numbers = 0
        super().__init__(self.count, lambda tensor: tensor)

    def count(self, tensor):
        self.numbers += tensor.numel()
        return tensor


@every
def test_gradient_checkpointing_keeps_less_and_changes_nothing(name):
    images, kept, gradients = pictures(), [], []
    for enabled in (False, True):
        model = member(name).train()
        if enabled:
            model.gradient_checkpointing_enable()
        memory = BlendCache()
        with memory:
            loss = loss_of(model, images)
        loss.backward()
        assert model.is_gradient_checkpointing is enabled
        kept.append(memory.numbers)
        gradients.append([each.grad for each in model.parameters() if each.grad is not None])
    assert kept[1] < kept[0] / 2
    for plain, again in zip(*gradients, strict=True):
        close(again, plain)


def test_compiled():
    """A student calls somebody else's model, whose graph may have breaks; ours make one graph, as tested elsewhere."""
    model, images = member("student", steps=2), pictures()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    close(first(compiled(images)), first(model(images)))


@every
def test_exported(name):
    model, images = member(name, steps=2), pictures()
    shapes = {"pixel_values": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(model, (), {"pixel_values": images}, dynamic_shapes=shapes).module()
    for batch in (2, 5):
        images = pictures(batch)
        close(first(program(pixel_values=images)), first(model(images)))


def test_onnx_with_any_batch(tmp_path):
    """torch's exporter on a model as it is; `odevit.export_onnx`, tested with all of ours, settles the way as well."""
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'odevit[onnx]'")
    pytest.importorskip("onnxscript", reason="pip install 'odevit[onnx]'")
    model, path = member("student", steps=2), os.fspath(tmp_path / "model.onnx")
    shapes = {"pixel_values": {0: torch.export.Dim.DYNAMIC}}
    torch.onnx.export(
        model, (), path, kwargs={"pixel_values": pictures()}, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 4):
        images = pictures(batch)
        found = session.run(None, {"pixel_values": images.numpy()})[0]
        close(torch.from_numpy(found), first(model(images)), factor=2048)


@every
def test_pipelines_with_batches(name, tmp_path):
    model = member(name)
    model.save_pretrained(tmp_path)
    shown = [drawn("circle", number) for number in range(5)]
    task = "image-feature-extraction" if name == "encoder" else "image-classification"
    ask = pipeline(task, os.fspath(tmp_path), image_processor=processor_of(name), device="cpu")
    options = {} if name == "encoder" else {"top_k": 5}
    alone = [ask(picture, **options) for picture in shown]
    for size in (1, 2, 5):
        together = list(ask(shown, batch_size=size, **options))
        assert numbers(together) == pytest.approx(numbers(alone), abs=1e-5)


def processor_of(name):
    """A student made from a model in memory has nobody's processor, and its user brings one."""
    if name != "student":
        return None
    from transformers import ViTImageProcessorPil

    return ViTImageProcessorPil(size={"height": 16, "width": 16})


def numbers(answers):
    """The scores of a classification by label, or the features, in a row."""
    if isinstance(answers[0][0], dict):
        return [share for answer in answers for _, share in sorted((each["label"], each["score"]) for each in answer)]
    return torch.tensor(answers).flatten().tolist()


@every
def test_eager_is_sdpa(name, tmp_path, monkeypatch):
    """Both compute the same, and each is what it says: eager attention is never fused."""
    model, images, calls = member(name), pictures(), []
    model.save_pretrained(tmp_path)
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    answers = {}
    for kind in ("eager", "sdpa"):
        loaded = type(model).from_pretrained(tmp_path, attn_implementation=kind).eval()
        calls.clear()
        answers[kind] = first(loaded(images))
        assert bool(calls) is (kind == "sdpa"), kind
        other = "sdpa" if kind == "eager" else "eager"
        loaded.set_attn_implementation(other)
        calls.clear()
        close(first(loaded(images)), answers[kind])
        assert bool(calls) is (other == "sdpa"), f"set to {other}"
    close(answers["eager"], answers["sdpa"])


@every
def test_weights_given_instead_of_a_folder(name):
    model = member(name)
    again = type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict()).eval()
    assert torch.equal(first(again(pictures())), first(model(pictures())))


@every
def test_a_model_of_transformers(name):
    model = member(name)
    assert isinstance(model, PreTrainedModel)
    assert isinstance(model.get_input_embeddings(), torch.nn.Module)
    assert model.main_input_name == "pixel_values"
    assert model.num_parameters() == sum(parameter.numel() for parameter in model.parameters())


@ours
def test_forward_features(name):
    """timm's name for the last states after the norm."""
    model, images = member(name), pictures()
    assert torch.equal(model.forward_features(images), model.odevit(images).last_hidden_state)
