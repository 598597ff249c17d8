"""Attention over time, attention paths and rollout."""

import pytest
import torch

from odevit.analysis.attention import attention_over_time, attention_path, rollout
from odevit.core.base import Dynamics, Field
from odevit.core.solution import SaveAt
from odevit.core.solver_config import SolverConfig
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.surgery import get_ode_model
from odevit.tokens import TokenLayout
from tests.tiny import tiny_images, tiny_model
from tests.zoo import images, make


def model_with(**overrides):
    return tiny_model(**{"steps": 3, "use_cls_token": True, "pooling": "cls", **overrides})


def trajectory(model, pixels, **options):
    """The states and all the maps that a model makes of images."""
    with torch.no_grad():
        return model(pixels, save=SaveAt("all", attentions=True), **options, return_dict=True).trajectory


def maps(count=3, batch=2, heads=3, tokens=5):
    return list(torch.randn(count, batch, heads, tokens, tokens, dtype=torch.float64).softmax(-1))


@pytest.mark.parametrize(("solver", "evaluations"), [("lie_trotter", 1), ("euler", 1), ("heun", 2), ("rk4", 4)])
def test_attention_over_time_gives_the_first_map_of_each_step(solver, evaluations):
    model, pixels = model_with(), tiny_images()
    path = attention_over_time(model, pixels, solver=solver)
    solution = trajectory(model, pixels, solver_config=model.solver_config.replace(solver=solver))
    assert path.times == solution.times
    assert len(solution.attentions) == 3 * evaluations
    for n, expected in enumerate(solution.attentions[::evaluations]):
        torch.testing.assert_close(path.heads[n], expected[:, :, 0, 1:17].unflatten(-1, (4, 4)))
    torch.testing.assert_close(path.mean, path.heads.mean(2))


def test_attention_over_time_accepts_a_config_and_overrides():
    model, pixels = model_with(), tiny_images()
    whole = attention_over_time(model, pixels, SolverConfig("euler", 4, 2.0))
    assert whole.times == (0.0, 0.5, 1.0, 1.5, 2.0)
    in_words = attention_over_time(model, pixels, solver="euler", steps=4, horizon=2.0)
    assert torch.equal(in_words.heads, whole.heads)
    except_for = attention_over_time(model, pixels, SolverConfig("heun", 4, 2.0), solver="euler")
    assert torch.equal(except_for.heads, whole.heads)
    assert attention_over_time(model, pixels).times == trajectory(model, pixels).times, "the model's own way"


def test_attention_over_time_leaves_out_cls_and_registers():
    path = attention_over_time(model_with(num_register_tokens=5), tiny_images())
    assert path.heads.shape == (4, 3, 2, 4, 4)
    assert path.query == "CLS"
    share = path.heads.flatten(-2).sum(-1)
    assert ((share > 0) & (share < 1)).all(), "the rest goes to CLS and registers"
    without = attention_over_time(model_with(num_register_tokens=0, use_cls_token=False, pooling="mean"), tiny_images())
    torch.testing.assert_close(without.heads.flatten(-2).sum(-1), torch.ones(4, 3, 2))


@pytest.mark.parametrize("has_cls", [False, True])
def test_attention_over_time_of_a_mean_head_averages_rows(has_cls):
    model, pixels = model_with(pooling="mean", use_cls_token=has_cls), tiny_images()
    path = attention_over_time(model, pixels)
    assert path.query == "mean of patches"
    first = trajectory(model, pixels).attentions[0]
    patches = slice(int(has_cls), int(has_cls) + 16)
    torch.testing.assert_close(path.heads[0].flatten(-2), first[:, :, patches, patches].mean(2))


def test_attention_over_time_of_attention_pooling_uses_its_weights():
    model, pixels = model_with(pooling="attention", use_cls_token=False), tiny_images()
    pooling, norm = model.odevit.pooling, model.odevit.norm
    torch.nn.init.normal_(pooling.score.weight)  # weights that differ from patch to patch
    path = attention_over_time(model, pixels)
    assert path.query == "weighted mean of patches"
    solution = trajectory(model, pixels)
    with torch.no_grad():
        patches = norm(solution.states[2])[:, :16]
        weights = pooling.score(patches).softmax(1).squeeze(-1)
        # What the head reads is this very mean of patches.
        pooled = torch.einsum("bi,bid->bd", weights, patches)
        torch.testing.assert_close(pooling(norm(solution.states[2]), model.layout()), pooled)
    expected = sum(weights[:, i, None, None] * solution.attentions[2][:, :, i, :16] for i in range(16))
    torch.testing.assert_close(path.heads[2].flatten(-2), expected)


def test_attention_over_time_of_an_adaptive_solver_matches_rk4():
    model, pixels = model_with(), tiny_images()
    path = attention_over_time(model, pixels, solver="dopri5", steps=4, horizon=2.0)
    fine = attention_over_time(model, pixels, solver="rk4", steps=40, horizon=2.0)
    assert path.times == pytest.approx((0.0, 0.5, 1.0, 1.5, 2.0))
    torch.testing.assert_close(path.heads, fine.heads[::10], rtol=5e-3, atol=5e-5)


def test_attention_path_of_given_states_and_maps():
    """A CLS token and four patches, of which the reader takes the last two: layers of a teacher, say."""
    layout = TokenLayout(has_cls=True, grid=(2, 2), num_registers=0)
    states, attentions = [torch.zeros(2, 5, 3), torch.ones(2, 5, 3)], [m.float() for m in maps(2)]

    def loading_errors(state):
        assert any(state is known for known in states)
        return torch.tensor([0.0, 0.0, 0.0, 0.25, 0.75]).expand(2, 5), "two patches"

    path = attention_path(range(1, 3), states, iter(attentions), layout, loading_errors)
    assert path.times == (1.0, 2.0)
    assert path.query == "two patches"
    assert all(kept is state for kept, state in zip(path.states, states, strict=True))
    for n in range(2):
        expected = 0.25 * attentions[n][:, :, 3, 1:] + 0.75 * attentions[n][:, :, 4, 1:]
        torch.testing.assert_close(path.heads[n], expected.unflatten(-1, (2, 2)))
    with pytest.raises(ValueError, match="shorter"):
        attention_path(range(1, 3), states, attentions[:1], layout, loading_errors)


@pytest.mark.parametrize("name", ["vit-classifier", "dinov2-registers-classifier"])
def test_attention_over_time_of_a_student(name):
    registers = 2 if "registers" in name else 0
    student, pixels = get_ode_model(make(name), OdeStudentConfig(steps=4)), images()
    path = attention_over_time(student, pixels)
    first = trajectory(student, pixels).attentions[0]
    assert path.query == "CLS"
    torch.testing.assert_close(path.heads[0].flatten(-2), first[:, :, 0, 1 + registers : 17 + registers])


def test_attention_over_time_of_a_narrower_student():
    teacher = tiny_model(depth="stacked", steps=2, pooling="attention", use_cls_token=False)
    student = get_ode_model(teacher, OdeStudentConfig(steps=2, hidden_size=16, num_attention_heads=2, registers=3))
    path = attention_over_time(student, tiny_images())
    assert path.query == "weighted mean of patches"
    assert path.states[0].shape == (3, 16 + 2 + 3, 16), "patches, the teacher's registers and its own"
    share = path.heads.flatten(-2).sum(-1)
    assert ((share > 0) & (share < 1)).all()


def test_attention_over_time_changes_nothing():
    model, pixels = model_with(attention_dropout=0.5, hidden_dropout=0.5), tiny_images()
    expected = attention_over_time(model, pixels)
    model.train()
    model.odevit.norm.eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    again = attention_over_time(model, pixels)
    torch.testing.assert_close(again.heads, expected.heads, msg="dropout was not drawn")
    assert not again.heads.requires_grad
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_attention_over_time_of_a_diverging_model_raises(monkeypatch):
    model = model_with()
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda pixels: embed(pixels) * torch.inf)
    with pytest.raises(ValueError, match="is not finite after 3 steps"):
        attention_over_time(model, tiny_images())


def test_attention_over_time_refuses_a_stacked_model():
    with pytest.raises(ValueError, match=r"it has no trajectory.*depth='ode'"):
        attention_over_time(model_with(depth="stacked"), tiny_images())


def test_attention_over_time_without_attention_raises():
    class Decay(Field):
        def dynamics(self, x0):
            return Dynamics({"decay": lambda x, t, _: -x}, anchor=x0)

    model = model_with()
    model.depth.field = Decay()
    with pytest.raises(ValueError, match="makes no attention maps; expected one with attention"):
        attention_over_time(model, tiny_images())


def test_rollout_of_identities_is_the_identity():
    eye = torch.eye(5).expand(2, 3, 5, 5)
    torch.testing.assert_close(rollout([eye] * 4), eye[:, 0])


def test_rollout_of_uniform_maps_in_closed_form():
    """(r I + (1 - r) U)^n = r^n I + (1 - r^n) U, for U U = U."""
    uniform, eye = torch.full((2, 3, 5, 5), 0.2, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    for r in (0.0, 0.3, 0.5, 1.0):
        expected = r**4 * eye + (1 - r**4) * uniform[:, 0]
        torch.testing.assert_close(rollout([uniform] * 4, r), expected)
    product = 0.9 * 0.5 * 0.2
    torch.testing.assert_close(rollout([uniform] * 3, [0.9, 0.5, 0.2]), product * eye + (1 - product) * uniform[:, 0])


def test_rollout_multiplies_later_maps_from_the_left_and_its_rows_sum_to_one():
    first, second = (attention.mean(1) for attention in maps(2))
    found = rollout([first[:, None], second[:, None]], 0.0)
    torch.testing.assert_close(found, second @ first)
    torch.testing.assert_close(rollout(maps(6)).sum(-1), torch.ones(2, 5, dtype=torch.float64))


def test_rollout_of_an_equation_does_not_depend_on_its_steps():
    """prod (I + h P) / (1 + h) tends to e^{T (P - I)} as h falls: the share belongs to the step, not to the layer."""
    P = maps(1)[0]
    exact = torch.linalg.matrix_exp(2.0 * (P.mean(1) - torch.eye(5, dtype=torch.float64)))

    def error(steps):
        h = 2.0 / steps
        return (rollout([P] * steps, 1 / (1 + h)) - exact).abs().max().item()

    assert error(200) < 0.02
    assert error(400) == pytest.approx(error(200) / 2, rel=0.05)


@pytest.mark.parametrize("residual", [-0.1, 1.1, [0.5], [0.5, 0.5, float("nan")]])
def test_rollout_refuses_shares_outside_0_to_1(residual):
    with pytest.raises(ValueError, match="expected"):
        rollout(maps(), residual)
