"""torch.compile: attention hooks, penalties and other horizons cause no recompilation."""

import torch
from torch._dynamo.testing import CompileCounter

from odevit.objectives.jasmin import JaSMin
from odevit.train.runner import compile_field
from tests.tiny import tiny_images, tiny_model

LABELS = torch.tensor([0, 1, 2])


def test_compiled_field_with_attention_hooks_is_not_recompiled():
    model, images, counter = tiny_model(steps=4), tiny_images(), CompileCounter()
    expected = model(images, output_attentions=True)
    compile_field(model, backend=counter)
    for _ in range(3):  # four steps each, every call with a new hook
        output = model(images, output_attentions=True)
    torch.testing.assert_close(output.attentions, expected.attentions)
    torch.testing.assert_close(output.logits, expected.logits)
    assert counter.frame_count == 2, "attention and MLP"
    with torch.compiler.set_stance("fail_on_recompile"):
        model(images, output_attentions=True)


def test_training_with_attention_penalty_is_not_recompiled():
    model, images, counter = tiny_model(steps=12).train(), tiny_images(), CompileCounter()
    compile_field(model, backend=counter)

    def step(**penalties):
        output = model(images, LABELS, penalties=penalties)
        (output.loss + sum((output.penalties or {}).values())).backward()

    step(jasmin=JaSMin())
    step()
    compiled = counter.frame_count
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(2):
            step(jasmin=JaSMin())
            step()
    assert counter.frame_count == compiled == 4, "attention and MLP, with and without hook"


def test_compile_fullgraph_of_a_model_gives_logits_and_trajectory():
    model, images, counter = tiny_model(), tiny_images(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for options in ({}, {"output_attentions": True}):
        for _ in range(3):
            output = compiled(images, **options)
        torch.testing.assert_close(output.logits, model(images).logits)
        assert output.trajectory.stats == output.stats
    assert counter.frame_count == 2


def test_compiled_model_accepts_another_horizon():
    """torch.compile makes the horizon symbolic at its second value."""
    model, images = tiny_model(solver="exponential_euler", steps=2, horizon=2.0, leak=0.5), tiny_images()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for horizon in (2.0, 3.0):
        output, expected = compiled(images, horizon=horizon), model(images, horizon=horizon)
        torch.testing.assert_close(output.logits, expected.logits)


def test_models_with_different_horizons_compile_in_one_process():
    images = tiny_images()
    for horizon in (2.0, 3.0, 4.5):
        model = tiny_model(steps=2, horizon=horizon)
        torch.testing.assert_close(
            torch.compile(model, backend="eager", fullgraph=True)(images).logits, model(images).logits
        )
