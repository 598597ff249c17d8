"""Residual scalings: formulas, initial values, saving and loading."""

import pytest
import torch

from odevit import OdeViTForImageClassification
from odevit.core.field import VectorField
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError
from odevit.systems.residual import SCALINGS
from odevit.systems.stacked import StackedDepth
from odevit.systems.tied import TiedDepth
from tests.tiny import tiny_config, tiny_images, tiny_model

DIM, LAYERS = 8, 4
CONSTANTS = {  # s_l, then a_l
    "none": ([1, 1, 1, 1], [1, 1, 1, 1]),
    "1/L": ([1 / 4] * 4, [1, 1, 1, 1]),
    "1/t": ([1, 1 / 2, 1 / 3, 1 / 4], [1, 1, 1, 1]),
    "deepnet": ([8**-0.25] * 4, [1, 1, 1, 1]),
    "decayed": ([1, 1, 1, 1], [0.9, 0.8, 0.7, 0.6]),
    "rezero": ([0, 0, 0, 0], [1, 1, 1, 1]),
    "layerscale": ([0.1] * 4, [1, 1, 1, 1]),
    "lipsformer": ([1 / 4] * 4, [1, 1, 1, 1]),
    "recursion": ([1, 1, 1, 1], [1, 1, 1, 1]),
}


@pytest.mark.parametrize("depth", [StackedDepth, TiedDepth])
@pytest.mark.parametrize("name", SCALINGS)
def test_initial_scaled_layers_equal_their_formula(name, depth):
    scaled = depth(lambda: VectorField(DIM, 2, 1.0), SolverConfig("euler", LAYERS, 3.0), scaling=name).double()
    fields = scaled.blocks() if depth is StackedDepth else [scaled.field] * LAYERS
    x0 = x = torch.randn(2, 5, DIM, dtype=torch.float64)
    for field, factor, shortcut in zip(fields, *CONSTANTS[name], strict=True):
        y, before = x, x
        for component in field.dynamics(x).components.values():
            y = y + factor * component(y, 0.0, None)
        x = y + (shortcut - 1) * before
    # Start values are made in single precision.
    torch.testing.assert_close(scaled(x0).state, x, rtol=1e-6, atol=1e-6)
    learned = {"rezero": LAYERS, "layerscale": 2 * LAYERS * DIM, "lipsformer": 2 * LAYERS * DIM}
    learned["recursion"] = 2 * LAYERS * DIM
    assert sum(weight.numel() for weight in scaled.scaling.parameters()) == learned.get(name, 0)


def test_learned_factors_scale_their_layer_and_component():
    depth = StackedDepth(lambda: VectorField(DIM, 2, 1.0), SolverConfig("euler", 2, 1.0), scaling="layerscale").double()
    for factor in depth.scaling.factors:
        torch.nn.init.normal_(factor)
    factors = iter(depth.scaling.factors)
    x0 = x = torch.randn(2, 5, DIM, dtype=torch.float64)
    for field in depth.blocks():
        for component in field.dynamics(x).components.values():
            x = x + next(factors) * component(x, 0.0, None)
    torch.testing.assert_close(depth(x0).state, x, rtol=1e-12, atol=1e-12)


def test_scaling_value_sets_the_published_number():
    solver_config = SolverConfig("euler", 5, 1.0)
    half = StackedDepth(lambda: VectorField(DIM, 2, 1.0), solver_config, scaling="rezero", scaling_value=0.5)
    assert [float(factor.detach()) for factor in half.scaling.factors] == [0.5] * 5
    least = StackedDepth(lambda: VectorField(DIM, 2, 1.0), solver_config, scaling="decayed", scaling_value=0.0)
    assert [least.scaling.shortcut(layer, 5) for layer in range(1, 6)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])
    starts = [SCALINGS["layerscale"].step(1, layers) for layers in (18, 24, 25)]
    assert starts == [0.1, 1e-5, 1e-6]


def test_rezero_is_initially_the_identity_and_has_gradients():
    model, images = tiny_model(depth="stacked", depth_options={"scaling": "rezero"}), tiny_images()
    solution = model(images, save="all").trajectory
    torch.testing.assert_close(solution.state, solution.states[0], rtol=0, atol=0)
    model(images, torch.tensor([0, 1, 2])).loss.backward()
    assert all(factor.grad.abs() > 0 for factor in model.depth.scaling.factors)


def test_deepnet_gain_is_applied_once_and_not_after_loading(tmp_path):
    model = tiny_model(depth="stacked", steps=4, depth_options={"scaling": "deepnet"})

    def norms(part):
        weights = [w for name, w in model.named_parameters() if name.endswith(f"{part}.weight") and "layers" in name]
        return torch.stack([torch.linalg.matrix_norm(weight.detach(), 2) for weight in weights])

    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"):
        gain = 1.0 if part in ("q_proj", "k_proj") else 32**-0.25
        torch.testing.assert_close(norms(part), torch.full((4,), gain), rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path)
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in again.state_dict().items())


@pytest.mark.parametrize(
    ("depth", "options", "said"),
    [
        ("stacked", {"scaling": "1/l"}, r"depth_options.scaling='1/l'; expected one of none, 1/L, 1/t, rezero"),
        ("stacked", {"scaling": "1/L", "scaling_value": 2.0}, r"scaling='1/L' has no number to set; leave it out, or"),
        (
            "stacked",
            {"block": ["rk2"], "shared": 0},
            r"2 problems(.|\n)*block=\['rk2'\](.|\n)*shared=0; expected",
        ),
        ("tied", {"block": "macaron"}, r"block='macaron'; expected one of lie_trotter, euler"),
        ("tied", {"rank": -1}, r"rank=-1; expected None or a whole number, at least 0"),
        ("dense", {"scalings": "1/L"}, r"unknown option 'scalings'(.|\n)*Did you mean 'scaling'"),
    ],
)
def test_invalid_scaling_options_are_refused(depth, options, said):
    with pytest.raises(ConfigError, match=said):
        tiny_config(depth=depth, depth_options=options)
