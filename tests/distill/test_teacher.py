"""A teacher is a frozen copy with the states and logits of its model, and refuses models that do not fit."""

import json

import pytest
import torch
from transformers import ViTImageProcessorPil

from odevit.data.images import DataSet, Images
from odevit.distill.teacher import Teacher, attention_over_layers
from odevit.errors import ConfigError
from odevit.surgery.surgery import get_ode_model
from tests.tiny import tiny_model
from tests.zoo import SIZE, ZOO, LikeTimm, answers, images, make


def classes(count):
    """Data of a class for each of a few grey images."""
    part = Images(torch.zeros(count, 3, SIZE, SIZE, dtype=torch.uint8), torch.arange(count))
    names = tuple(str(number) for number in range(count))
    return DataSet("grey", part, part, part, names, (0.5,) * 3, (0.5,) * 3, SIZE, 3)


@pytest.mark.parametrize("name", ZOO)
def test_teacher_states_and_logits_are_those_of_the_model(name):
    model, pixels = make(name), images()
    teacher = Teacher(model)
    output = teacher(pixels)
    expected = model(pixels, output_hidden_states=True)
    assert len(output.states) == teacher.num_layers + 1 == 4
    assert teacher.vit_spec.width == 32
    assert len(expected.hidden_states) == 4
    for h, x in zip(output.states, expected.hidden_states, strict=True):
        assert torch.equal(h, x)
    if "logits" in answers(expected):
        assert torch.equal(output.logits, expected.logits)
        solution = output.trajectory
        assert (solution.stats.nfe, solution.times) == (3, (0.0, 1.0, 2.0, 3.0))
        assert solution.state is solution.states[-1]
        assert teacher.match_classes(classes(5)).num_classes == 5
    else:
        assert output.logits is None
        assert output.pooled.shape[0] == 2
        with pytest.raises(ValueError, match="without a classification head"):
            teacher.match_classes(classes(5))


@pytest.mark.parametrize("name", ["vit", "dinov2-registers", "dinov3", "clip", "siglip", "odevit"])
def test_teacher_attentions_are_normalised_maps_of_each_block(name):
    model, pixels = make(name), images()
    teacher = Teacher(model)
    plain = teacher(pixels)
    output = teacher(pixels, attentions=True)
    tokens = output.states[0].shape[1]
    assert plain.attentions is None
    assert [attention.shape for attention in output.attentions] == [(2, 4, tokens, tokens)] * 3
    for attention in output.attentions:
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4, tokens))
    path, layout = attention_over_layers(teacher, pixels), teacher.layout(pixels)
    assert path.times == (1.0, 2.0, 3.0)
    assert path.query == ("CLS" if layout.has_cls else "mean of patches")
    rows = output.attentions[1][:, :, layout.cls if layout.has_cls else layout.patches].mean(2)[..., layout.patches]
    torch.testing.assert_close(path.heads[1].flatten(-2), rows)
    again = teacher(pixels)
    assert all(torch.equal(a, b) for a, b in zip(plain.states, again.states, strict=True))
    with pytest.raises(ValueError, match="LikeTimm does not give its maps"):
        Teacher(LikeTimm().eval())(pixels, attentions=True)


def test_teacher_is_a_frozen_copy():
    model = make("vit")
    flags = [value.requires_grad for value in model.parameters()]
    teacher = Teacher(model)
    assert not any(value.requires_grad for value in teacher.parameters())
    assert [value.requires_grad for value in model.parameters()] == flags
    teacher.train()
    assert not any(module.training for module in teacher.modules())
    before = teacher.states(images())[-1]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert torch.equal(teacher.states(images())[-1], before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in teacher.modules())
    # A student's loss must be able to keep what a teacher says.
    assert not before.is_inference()


def test_teacher_readout_of_the_last_state_gives_the_teachers_logits():
    model, pixels = make("vit-classifier"), images()
    teacher, student = Teacher(model), get_ode_model(model, steps=3)
    assert torch.equal(student.teacher_readout(teacher.states(pixels)[-1]).logits, teacher(pixels).logits)


@pytest.mark.parametrize("name", ["vit-classifier", "dino", "clip-projection", "odevit"])
def test_teacher_from_a_folder_has_the_states_of_the_model(name, tmp_path):
    model, pixels = make(name), images()
    model.save_pretrained(tmp_path)
    teacher = Teacher(tmp_path)
    for h, x in zip(teacher.states(pixels), Teacher(model).states(pixels), strict=True):
        assert torch.equal(h, x)
    assert type(teacher.model) is type(model)


def test_teacher_refuses_a_checkpoint_without_all_weights(tmp_path):
    make("vit").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["ViTForImageClassification"]}))
    with pytest.raises(ValueError, match=r"lacks 2 weights of ViTForImageClassification \(classifier"):
        Teacher(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MyOwnViT"]}))
    with pytest.raises(ValueError, match=r"\['MyOwnViT'\], none of which transformers or odevit knows"):
        Teacher(str(tmp_path))


def test_pixel_statistics_come_from_processor_configuration_or_arguments(tmp_path, monkeypatch):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    model = make("vit-classifier")
    assert Teacher(model).pixel_statistics is None
    Teacher(model).check_pixels(mean, std)
    assert Teacher(model, image_mean=mean, image_std=std).pixel_statistics.mean == mean
    with pytest.raises(ValueError, match="expected both or none"):
        Teacher(model, image_mean=mean)

    model.save_pretrained(tmp_path)
    size = {"height": SIZE, "width": SIZE}
    ViTImageProcessorPil(size=size, image_mean=list(mean), image_std=list(std)).save_pretrained(tmp_path)
    for teacher in (Teacher(tmp_path), Teacher(type(model).from_pretrained(tmp_path))):
        assert (teacher.pixel_statistics.mean, teacher.pixel_statistics.std) == (mean, std)
        teacher.check_pixels(mean, std)
        with pytest.raises(
            ValueError, match=r"mean=\[0.5, 0.5, 0.5\].*trained with mean=\[0.1, 0.2, 0.3\].*normalise the data"
        ):
            teacher.check_pixels((0.5,) * 3, std)
    with pytest.raises(ValueError, match=r"were given, the image processor of the teacher says"):
        Teacher(tmp_path, image_mean=(0.5,) * 3, image_std=std)
    monkeypatch.chdir(tmp_path)  # a model that comes from no folder has no processor, whatever lies around
    assert Teacher(make("vit-classifier")).pixel_statistics is None
    own = Teacher(tiny_model(depth="stacked", image_mean=mean, image_std=std))
    assert own.pixel_statistics.mean == mean


def test_teacher_refuses_models_that_cannot_teach():
    with pytest.raises(ConfigError, match=r"training mode.*call teacher.eval\(\)"):
        Teacher(make("vit").train())
    with pytest.raises(ValueError, match="a teacher without hidden states: Linear has no list of equal blocks"):
        Teacher(torch.nn.Linear(2, 2).eval())
    with pytest.raises(ConfigError, match=r"replaced by an equation; call .unload\(\)"):
        Teacher(get_ode_model(make("vit")))
    with pytest.raises(
        ValueError, match=r"the data has 7 classes \(.*\), the teacher has 5 \(.*; train a head for this data first"
    ):
        Teacher(make("vit-classifier")).match_classes(classes(7))
