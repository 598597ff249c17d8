"""What is not to be had, and that one is told."""

import pytest
import torch
from safetensors.torch import save_file
from transformers.modeling_layers import GradientCheckpointingLayer

from odevit import OdeViTConfig, OdeViTForImageClassification, export_program
from tests.hf.family import loss_of, member, pictures
from tests.tiny import tiny_model


def test_segments_are_checkpointed_and_not_layers():
    """There is no list of layers: the field is evaluated again, whole steps at a time, in the backward pass."""
    model = member("classifier").train()
    assert not any(isinstance(module, GradientCheckpointingLayer) for module in model.modules())
    model.gradient_checkpointing_enable()
    calls = []
    model.odevit.depth.field.components["mlp"].register_forward_pre_hook(lambda *_: calls.append(1))
    loss = loss_of(model, pictures())
    forwards = len(calls)
    loss.backward()
    assert forwards < len(calls) <= 2 * forwards


def test_foreign_weights_are_refused(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    save_file({"tensor": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"weights are missing.*1 are of no use \(tensor\)"):
        OdeViTForImageClassification.from_pretrained(tmp_path)


def test_other_shapes_are_refused_with_the_remedy(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"other shapes .*num_labels=\.\.\.\), pass ignore_mismatched_sizes=True"):
        OdeViTForImageClassification.from_pretrained(tmp_path, num_labels=9)


def test_misspelt_keys_are_refused():
    with pytest.raises(ValueError, match=r"unknown key 'rms_norm_eps'. Did you mean 'norm_eps'"):
        OdeViTConfig(rms_norm_eps=1e-6)


def test_adaptive_solvers_are_not_exported():
    with pytest.raises(ValueError, match=r"'dopri5' chooses its steps while it runs.*solver='rk4', steps=24"):
        export_program(tiny_model(solver="dopri5"))


def test_a_student_keeps_the_head_of_its_teacher(tmp_path):
    student = member("student")
    student.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="num_labels=9 was given, but the head of a student is its teacher's, with 5"):
        type(student).from_pretrained(tmp_path, num_labels=9, ignore_mismatched_sizes=True)
    assert type(student).from_pretrained(tmp_path, num_labels=5)(pictures()).logits.shape == (3, 5)
