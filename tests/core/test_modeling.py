"""OdeViTModel and OdeViTForImageClassification: outputs, options of a call, layout, loss."""

import pytest
import torch

from odevit import OdeViTForImageClassification, OdeViTModel, SaveAt
from odevit.core.field import VectorField
from odevit.core.layers import Projection
from tests.tiny import tiny_config, tiny_images, tiny_model


def projections(model):
    return [module.weight for module in model.modules() if isinstance(module, Projection)]


def test_init_gives_every_projection_spectral_norm_one():
    model = tiny_model(attention="dot")
    weights = [*projections(model), model.odevit.embedding.tokenizer.projection.weight]
    assert len(weights) == 7, "Q, K, V, O, two of the MLP, and the patch projection"
    for weight in weights:
        assert torch.linalg.matrix_norm(weight.flatten(1), ord=2).item() == pytest.approx(1.0, abs=1e-4)


def test_call_arguments_choose_the_solver_and_leave_weights_unchanged():
    model, images = tiny_model(), tiny_images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = model(images)
    other = model(images, solver="rk4", steps=12, horizon=2.0)
    assert (own.stats.nfe, other.stats.nfe, other.stats.steps) == (2, 48, 12)
    assert not torch.allclose(own.logits, other.logits)
    assert torch.equal(model(images).logits, own.logits)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_forward_sets_no_attribute_of_a_module():
    model = tiny_model()
    state = {id(module): set(vars(module)) for module in model.modules()}
    model(tiny_images(), output_attentions=True, output_hidden_states=True)
    assert all(set(vars(module)) == state[id(module)] for module in model.modules())


def test_outputs_have_the_expected_shapes():
    model = tiny_model(steps=3)
    output = model(tiny_images(), output_attentions=True, output_hidden_states=True)
    tokens = 1 + 16 + 2
    assert [state.shape for state in output.hidden_states] == [(3, tokens, 32)] * 4
    assert [each.shape for each in output.attentions] == [(3, 2, tokens, tokens)] * 3
    assert output.trajectory.times == (0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0)
    assert output.trajectory.ok
    assert model(tiny_images()).attentions is None
    assert model(tiny_images()).hidden_states is None


def test_output_attentions_have_gradient():
    model = tiny_model()
    output = model(tiny_images(), output_attentions=True)
    layout = model.layout()
    output.attentions[-1][:, :, layout.cls, layout.patches].max().backward()
    assert model.odevit.depth.field.attention.k_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("registers", [0, 3])
def test_layout_slices_cls_patches_and_registers(registers):
    model = tiny_model(num_register_tokens=registers)
    layout = model.layout()
    index = torch.arange(len(layout))
    assert index[layout.cls].tolist() == [0]
    assert index[layout.patches].tolist() == list(range(1, 17))
    assert index[layout.registers].tolist() == list(range(17, 17 + registers))
    assert model(tiny_images(), output_attentions=True).attentions[0].shape[-1] == len(layout)


def test_registers_have_positions_only_with_register_positions():
    model = tiny_model()
    embedding = model.odevit.embedding
    torch.nn.init.constant_(embedding.register_tokens, 7.0)
    x0 = embedding(tiny_images())
    assert (x0[:, model.layout().registers] == 7.0).all(), "registers have no positions unless asked for"
    with_positions = tiny_model(register_positions=True).odevit.embedding
    torch.nn.init.constant_(with_positions.register_tokens, 7.0)
    assert not (with_positions(tiny_images())[:, model.layout().registers] == 7.0).any()


@pytest.mark.parametrize("pooling", ["cls", "mean", "attention"])
@pytest.mark.parametrize("tokenizer", ["patch", "conv"])
def test_every_pooling_works_with_every_tokenizer(pooling, tokenizer):
    model = tiny_model(pooling=pooling, tokenizer=tokenizer)
    assert model(tiny_images()).logits.shape == (3, 5)


def test_mean_pooling_averages_patches_only():
    model = tiny_model(pooling="mean")
    output = model.odevit(tiny_images())
    expected = output.last_hidden_state[:, 1:17].mean(1)
    torch.testing.assert_close(output.pooler_output, expected)


@pytest.mark.parametrize("labels", [torch.tensor([0, 4, 2]), torch.eye(5)[[0, 4, 2]]])
def test_loss_accepts_class_indices_and_probabilities(labels):
    model, images = tiny_model(), tiny_images()
    output = model(images, labels)
    expected = -output.logits.log_softmax(-1)[torch.arange(3), torch.tensor([0, 4, 2])].mean()
    torch.testing.assert_close(output.loss, expected)


def test_other_image_sizes_need_interpolate_pos_encoding():
    model = tiny_model()
    with pytest.raises(ValueError, match=r"24x24, the model was made for 16x16.*interpolate_pos_encoding=True"):
        model(tiny_images(size=24))
    assert model(tiny_images(size=24), interpolate_pos_encoding=True).logits.shape == (3, 5)
    with pytest.raises(ValueError, match=r"18x18, but tokens are 4 pixels wide"):
        model(tiny_images(size=18), interpolate_pos_encoding=True)


def test_position_interpolation_preserves_a_linear_ramp():
    model = tiny_model(num_register_tokens=0)
    embedding = model.odevit.embedding
    ramp = torch.arange(4.0).repeat_interleave(4).view(1, 16, 1).expand(1, 16, 32)
    embedding.positions.data[:, 1:] = ramp
    wide = embedding._interpolated(model.layout(32, 32))[0, 1:, 0].view(8, 8)
    torch.testing.assert_close(wide[:, 0], wide[:, 5])
    inner = wide[2:6, 0]
    torch.testing.assert_close(inner.diff(), torch.full((3,), 0.5), rtol=0, atol=0.15)


def test_nan_pixels_error_lists_the_images():
    images = tiny_images()
    images[1, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"NaN or infinity in the images \[1\]"):
        tiny_model()(images)


def test_wrong_number_of_channels_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 1, 16, 16\); expected \[batch, 3, height, width\]"):
        tiny_model()(torch.randn(2, 1, 16, 16))


def test_stacked_depth_has_one_field_per_layer_and_no_leak():
    model = tiny_model(depth="stacked", steps=3)
    fields = [module for module in model.modules() if isinstance(module, VectorField)]
    assert len(fields) == 3
    assert all(field.leak == 0 for field in fields)
    assert model(tiny_images()).stats.nfe == 3
    with pytest.raises(ValueError, match="remove this option"):
        model(tiny_images(), steps=4)


@pytest.mark.parametrize("depth", ["ode", "stacked"])
def test_gradient_checkpointing_enable_does_not_change_gradients(depth):
    model, images, labels = tiny_model(depth=depth), tiny_images(), torch.tensor([0, 1, 2])
    model.train()
    gradients = []
    for enabled in (False, True):
        if enabled:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(images, labels).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast_keeps_the_trajectory_in_single_precision():
    model = tiny_model(tokenizer="conv")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trajectory = model(tiny_images(), save="all").trajectory
    assert {state.dtype for state in trajectory.states} == {torch.float32}


def test_encoder_returns_hidden_state_and_pooled_vector():
    model = OdeViTModel(tiny_config()).eval()
    output = model(tiny_images(), save=SaveAt([2]))
    assert output.pooler_output.shape == (3, 32)
    assert torch.equal(output.trajectory.states[0], output.trajectory.state)
    assert isinstance(model(tiny_images(), return_dict=False), tuple)


def test_models_with_the_same_seed_are_equal():
    def weights():
        torch.manual_seed(7)
        return OdeViTForImageClassification(tiny_config()).state_dict()

    assert all(torch.equal(a, b) for a, b in zip(weights().values(), weights().values(), strict=True))


def test_readout_gives_logits_of_any_state():
    model = tiny_model(steps=4)
    output = model(tiny_images(), save="all")
    torch.testing.assert_close(model.readout(output.trajectory.states[-1]), output.logits, rtol=0, atol=0)
    halfway = model(tiny_images(), steps=2, horizon=0.5)
    assert model.readout(halfway.trajectory.state).shape == (3, 5)
