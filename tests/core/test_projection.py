"""Projections with adapters, quantised or offloaded weights."""

import copy

import pytest
import torch
from accelerate import disk_offload
from torch import nn

from odevit.core.attention import ATTENTIONS
from odevit.core.field import VectorField
from odevit.core.layers import Projection
from tests.tiny import tiny_images, tiny_model

KINDS = sorted(ATTENTIONS)


class Adapted(nn.Module):
    """y = W x + B A x, the adapter beside the weight as peft has it."""

    def __init__(self, linear):
        super().__init__()
        self.base = linear
        self.down = nn.Linear(linear.in_features, 2, bias=False)
        self.up = nn.Linear(2, linear.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

    def merged(self):
        linear = copy.deepcopy(self.base)
        linear.weight.data += self.up.weight @ self.down.weight
        return linear


@pytest.mark.parametrize("kind", KINDS)
def test_merging_a_peft_adapter_does_not_change_logits(kind):
    field = VectorField(32, 4, attention=kind).double().eval()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    alone = field(x)
    for name, part in list(field.attention.named_children()):
        if isinstance(part, Projection):
            setattr(field.attention, name, Adapted(part).double())
    beside = field(x)
    for name, part in list(field.attention.named_children()):
        if isinstance(part, Adapted):
            setattr(field.attention, name, part.merged())
    torch.testing.assert_close(field(x), beside, rtol=1e-10, atol=1e-10)
    assert (beside - alone).abs().max() > 1e-3 * alone.abs().max(), "the adapter does something"


@pytest.mark.parametrize("kind", KINDS)
def test_offloaded_weights_give_the_same_logits_in_every_call(kind, tmp_path):
    model, images = tiny_model(attention=kind), tiny_images()
    with torch.no_grad():
        expected = model(images).logits
        disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
        assert all(parameter.is_meta for parameter in model.depth.parameters())
        for _ in range(2):
            torch.testing.assert_close(model(images).logits, expected)


def test_offloading_interpolated_weights_is_refused(tmp_path):
    """The forward that Accelerate sets would run with the original weights."""
    model = tiny_model(knots=2)
    disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    with pytest.raises(ValueError, match="load the model without offloading"), torch.no_grad():
        model(tiny_images(), steps=4)


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_quantisation_quantises_the_field(kind):
    if "qnnpack" not in torch.backends.quantized.supported_engines and torch.backends.quantized.engine == "none":
        pytest.skip("this build of torch has no quantised kernels")
    model, images = tiny_model(attention=kind), tiny_images()
    count = sum(isinstance(module, Projection) for module in model.modules())
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    reached = [m for m in quantised.depth.modules() if isinstance(m, torch.ao.nn.quantized.dynamic.Linear)]
    assert len(reached) == count > 0
    with torch.no_grad():
        expected = model(images).logits
        assert (quantised(images).logits - expected).abs().max() < 0.1 * expected.abs().max(), "8 bits, a few layers"


def test_quantised_knots_are_refused_if_interpolated_and_run_if_constant():
    """Packed weights cannot be interpolated; constant pieces run."""
    if torch.backends.quantized.engine == "none":
        pytest.skip("this build of torch has no quantised kernels")
    images = tiny_images()

    def quantised(**settings):
        model = tiny_model(steps=4, **settings)
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8), model

    with torch.no_grad():
        for settings in ({"knots": 2}, {"knots": 3, "rank": 2}):
            with pytest.raises(ValueError, match="are packed and cannot be interpolated; quantise a field"):
                quantised(**settings)[0](images)
        found, model = (each(images).logits for each in quantised(knots=3, blend="constant"))
        assert (found - model).abs().max() < 0.1 * model.abs().max()
