"""Tied and dense depths: one repeated block, and averages of earlier states."""

import pytest
import torch

from odevit import OdeViTForImageClassification, get_ode_model
from odevit.core.base import Request
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError
from odevit.systems.stacked import DenseDepth, StackedDepth
from odevit.systems.tied import TiedDepth
from odevit.time_varying.knots import KnottedField
from tests.tiny import tiny_images, tiny_model
from tests.zoo import images, make

DIM = 8


def field(**options):
    torch.manual_seed(3)
    return VectorField(DIM, 2, 1.0, **options).double()


@pytest.fixture
def x0():
    return torch.randn(2, 5, DIM, dtype=torch.float64)


@pytest.mark.parametrize("time_conditioned", [False, True])
def test_tied_depth_equals_lie_trotter_with_unit_steps(x0, time_conditioned):
    f = field(leak=0.7, time_conditioned=time_conditioned)
    if time_conditioned:
        for weight in f.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    tied = TiedDepth(lambda: f, SolverConfig("heun", 4, 4.0))
    found = tied(x0, Request(save="all"))
    expected = solve(f, x0, solver="lie_trotter", steps=4, t1=4.0, save="all")
    torch.testing.assert_close(found.states, expected.states, rtol=1e-12, atol=1e-12)
    assert (found.stats.nfe, found.times) == (4, (0.0, 1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize(("block", "order"), [("euler", 1), ("lie_trotter", 1), ("rk2", 1), ("rk4", 1), ("strang", 2)])
def test_tied_depth_scaled_by_1_over_l_converges_with_the_order_of_its_block(x0, block, order):
    f = field(leak=0.7)
    tied = TiedDepth(lambda: f, SolverConfig("heun", 3, 6.0), block=block, scaling="1/L")
    exact = solve(f, x0, solver="rk4", steps=50, t1=1.0).state
    found = {layers: tied(x0, Request(tied.resolve(None, layers, None))).state for layers in (24, 48)}
    coarse, fine = (float((state - exact).norm().detach()) for state in found.values())
    assert 0.8 * 2**order < coarse / fine < 1.2 * 2**order
    if block in ("euler", "lie_trotter"):
        torch.testing.assert_close(found[24], solve(f, x0, solver=block, steps=24, t1=1.0).state)


def test_tied_depth_with_rank_is_initially_tied_and_changes_per_repetition(x0, tmp_path):
    options = {"depth": "tied", "steps": 3, "leak": 0.0}
    torch.manual_seed(1)
    plain = tiny_model(**options)
    relaxed = tiny_model(**options, depth_options={"rank": 2, "scaling": "recursion"})
    relaxed.load_state_dict(
        {name.replace("field.", "field.knots.0."): value for name, value in plain.state_dict().items()}, strict=False
    )
    pixels = tiny_images()
    torch.testing.assert_close(relaxed(pixels).logits, plain(pixels).logits)
    before = relaxed(pixels, save="all").trajectory.states
    with torch.no_grad():
        for name, weight in relaxed.depth.field.changes[1].named_parameters():
            if not name.endswith("_left"):
                weight.normal_(std=0.1)
    after = relaxed(pixels, save="all").trajectory.states
    same = [torch.equal(one, other) for one, other in zip(before, after, strict=True)]
    assert same == [True, True, False, False], "only from the second repetition on"

    relaxed(pixels, torch.tensor([0, 1, 2])).loss.backward()
    silent = [name for name, p in relaxed.named_parameters() if not p.grad.abs().sum() > 0]
    assert all("_left" in name and "changes.1" not in name for name in silent), "A has no gradient while B is 0"
    relaxed.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(pixels).logits, relaxed(pixels).logits)


def test_rank_0_changes_vectors_only():
    changes = tiny_model(depth="tied", steps=3, depth_options={"rank": 0}).depth.field.changes
    assert len(changes) == 3
    assert {weight.ndim for weight in changes.parameters()} == {1}


def test_student_initialised_by_svd_runs_as_tied_depth():
    teacher, pixels = make("vit"), images()
    student = get_ode_model(teacher, knots=3, blend="constant", rank=64, steps=None, horizon=None).eval()
    assert isinstance(student.field, KnottedField)
    own, repeated = student(pixels), student(pixels, depth="tied")
    torch.testing.assert_close(repeated.last_hidden_state, own.last_hidden_state)
    # Of full rank, it is the teacher itself.
    torch.testing.assert_close(repeated.last_hidden_state, teacher(pixels).last_hidden_state, rtol=1e-3, atol=1e-4)


def test_steps_of_tied_depth_can_change_without_learned_factors():
    pixels = tiny_images()
    assert tiny_model(steps=2)(pixels, depth="tied", steps=5).stats.steps == 5
    with pytest.raises(ConfigError, match="learned factors for 2 repetitions"):
        tiny_model(depth="tied", depth_options={"scaling": "rezero"})(pixels, steps=5)
    with pytest.raises(ConfigError, match="would skip 1 of the 2 constant pieces"):
        tiny_model(depth="tied", depth_options={"rank": 2})(pixels, steps=1)
    with pytest.raises(ConfigError, match="2 problems"):
        tiny_model(depth="tied")(pixels, solver="rk4", horizon=2.0)
    with pytest.raises(ConfigError, match="have no ODE solver; pass steps=2"):
        tiny_model(depth="tied")(pixels, solver_config=SolverConfig("rk4", 2, 1.0))
    with pytest.raises(ConfigError, match="the weights change with time already"):
        tiny_model(depth="tied", knots=2, depth_options={"rank": 2})


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({"scaling": "layerscale"}, "scaling.factors"),
        ({"scaling": "rezero"}, "scaling.factors"),
        ({"block": "rk2_gated"}, "block.gate"),
        ({"rank": 2}, "field.changes"),
        ({"rank": 0, "scaling": "recursion"}, "scaling.factors, field.changes"),
    ],
)
@pytest.mark.parametrize("depth", ["ode", "equilibrium"])
def test_tied_depth_with_other_weights_refuses_another_depth(options, own, depth):
    model = tiny_model(depth="tied", leak=1.0, depth_options=options)
    with pytest.raises(ValueError, match=rf"weights beside those of its field \({own}\); use the depth it was"):
        model(tiny_images(), depth=depth)
    assert model(tiny_images(), depth="tied").trajectory.ok


def test_dense_depth_averages_all_earlier_states(x0):
    torch.manual_seed(0)
    dense = DenseDepth(lambda: VectorField(DIM, 2, 1.0).double(), SolverConfig("euler", 3, 1.0)).double()
    stack = StackedDepth(lambda: VectorField(DIM, 2, 1.0).double(), SolverConfig("euler", 3, 1.0))
    stack.load_state_dict(dense.state_dict(), strict=False)
    torch.testing.assert_close(dense(x0).state, stack(x0).state)
    assert sum(weight.numel() for weight in dense.shares) == 3 * (3 + 3) // 2
    for shares in dense.shares:
        torch.nn.init.normal_(shares)
    y, seen = x0, [x0]
    for layer, shares in zip(dense.blocks(), dense.shares, strict=True):
        seen.append(solve(layer, y, solver="lie_trotter", steps=1, t1=1.0).state)
        y = torch.einsum("jbtd,j->btd", torch.stack(seen), shares)
    torch.testing.assert_close(dense(x0).state, y, rtol=1e-12, atol=1e-12)
