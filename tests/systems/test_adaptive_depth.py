"""Depths that adapt to the data: checkpointing and CUDA graphs."""

from types import SimpleNamespace

import pytest
import torch

from odevit.train.trainer import OdeViTTrainer
from tests.tiny import tiny_images, tiny_model


@pytest.mark.parametrize("depth", ["universal", "recurrent", "recursions"])
def test_checkpointing_does_not_change_gradients(depth):
    model, images, labels = tiny_model(depth=depth, hidden_dropout=0.2).train(), tiny_images(), torch.tensor([0, 1, 2])
    gradients = []
    for enable in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        enable()
        torch.manual_seed(3)
        model.zero_grad()
        model(images, labels).loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "captured"),
    [
        ({"depth": "stacked"}, True),
        ({"depth": "ode"}, True),
        ({"depth": "ode", "solver": "dopri5"}, False),
        ({"depth": "universal"}, True),
        ({"depth": "recurrent"}, False),
        ({"depth": "recursions"}, True),
        ({"depth": "recursions", "depth_options": {"router": "token"}}, False),
    ],
)
def test_can_capture_only_depths_with_a_fixed_graph(settings, captured, monkeypatch):
    monkeypatch.setattr("odevit.train.trainer.CapturedStep", lambda *_: SimpleNamespace(fits=lambda _: True))
    network = tiny_model(**settings)
    monkeypatch.setattr("transformers.Trainer.__init__", lambda *_, **__: None)
    train = SimpleNamespace(capture=True, ema=0, precision="fp32", weights={}, penalties={})
    task = SimpleNamespace(network=network, batches=None, validation=None, recipe=SimpleNamespace(train=train))
    trainer = OdeViTTrainer(task, SimpleNamespace(output_dir="checkpoints"))
    trainer.args = SimpleNamespace(device=SimpleNamespace(type="cuda"), world_size=1)
    assert trainer._can_capture({"pixel_values": tiny_images()}) is captured
