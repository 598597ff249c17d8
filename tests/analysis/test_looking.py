"""What is looked at is what the maps say, of the image alone, and looking changes nothing."""

from dataclasses import replace

import pytest
import torch

from odevit.analysis.attention import (
    CLS,
    MEAN,
    POOLING,
    attention_over_time,
    mass_threshold,
    rollout,
    teacher_attention,
)
from odevit.analysis.subject import Subject
from odevit.distill import OdeEncoderConfig, Teacher, get_ode_model
from odevit.field import Field
from odevit.field.dynamics import Dynamics
from odevit.solver import Save
from tests.distill.zoo import images, make
from tests.model.tiny import tiny_images, tiny_model


def subject(**overrides):
    return Subject.of(tiny_model(**{"steps": 3, "use_cls_token": True, "pooling": "cls", **overrides}))


def maps(count=3, batch=2, heads=3, tokens=5):
    return list(torch.randn(count, batch, heads, tokens, tokens, dtype=torch.float64).softmax(-1))


@pytest.mark.parametrize(("solver", "evaluations"), [("lie_trotter", 1), ("euler", 1), ("heun", 2), ("rk4", 4)])
def test_the_map_of_a_time_is_the_first_that_the_step_from_there_makes(solver, evaluations):
    one, pixels = subject(), tiny_images()
    path = attention_over_time(one, pixels, solver=solver)
    with torch.no_grad():
        solution = one.solve(one.embed(pixels), solver=solver, save=Save("all", attentions=True))
    assert path.times == solution.times
    assert len(solution.attentions) == 3 * evaluations
    for n, expected in enumerate(solution.attentions[::evaluations]):
        torch.testing.assert_close(path.heads[n], expected[:, :, 0, 1:17].unflatten(-1, (4, 4)))
    torch.testing.assert_close(path.mean, path.heads.mean(2))


def test_registers_and_cls_are_not_looked_at_however_many_there_are():
    path = attention_over_time(subject(num_register_tokens=5), tiny_images())
    assert path.heads.shape == (4, 3, 2, 4, 4)
    assert path.query == CLS
    share = path.heads.flatten(-2).sum(-1)
    assert ((share > 0) & (share < 1)).all(), "the rest goes to CLS and registers"
    without = attention_over_time(subject(num_register_tokens=0, use_cls_token=False, pooling="mean"), tiny_images())
    torch.testing.assert_close(without.heads.flatten(-2).sum(-1), torch.ones(4, 3, 2))


@pytest.mark.parametrize("has_cls", [False, True])
def test_a_head_that_averages_looks_with_all_patches_alike(has_cls):
    one, pixels = subject(pooling="mean", use_cls_token=has_cls), tiny_images()
    path = attention_over_time(one, pixels)
    assert path.query == MEAN
    with torch.no_grad():
        first = one.solve(one.embed(pixels), save=Save(attentions=True)).attentions[0]
    patches = slice(int(has_cls), int(has_cls) + 16)
    torch.testing.assert_close(path.heads[0].flatten(-2), first[:, :, patches, patches].mean(2))


def test_a_head_that_weighs_patches_looks_with_its_own_weights():
    one, pixels = subject(pooling="attention", use_cls_token=False), tiny_images()
    torch.nn.init.normal_(one.model.odevit.pooling.score.weight)  # weights that differ from patch to patch
    path = attention_over_time(one, pixels)
    assert path.query == POOLING
    with torch.no_grad():
        solution = one.solve(one.embed(pixels), save=Save("all", attentions=True))
        patches = one.model.odevit.norm(solution.states[2])[:, :16]
        weights = one.model.odevit.pooling.score(patches).softmax(1).squeeze(-1)
    # What the head reads is this very mean of patches.
    pooled = torch.einsum("bi,bid->bd", weights, patches)
    torch.testing.assert_close(one.model.odevit.pooling(one.model.odevit.norm(solution.states[2]), one.layout), pooled)
    expected = sum(weights[:, i, None, None] * solution.attentions[2][:, :, i, :16] for i in range(16))
    torch.testing.assert_close(path.heads[2].flatten(-2), expected)


def test_an_adaptive_solver_gives_the_maps_of_the_same_trajectory():
    one, pixels = subject(), tiny_images()
    path = attention_over_time(one, pixels, solver="dopri5", steps=4, horizon=2.0)
    fine = attention_over_time(one, pixels, solver="rk4", steps=40, horizon=2.0)
    assert path.times == pytest.approx((0.0, 0.5, 1.0, 1.5, 2.0))
    torch.testing.assert_close(path.heads, fine.heads[::10], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["vit-classifier", "dinov2-registers-classifier"])
def test_a_student_looks_with_its_own_maps_and_a_teacher_with_its_layers(name):
    teacher = make(name)
    registers = 2 if "registers" in name else 0
    student, pixels = get_ode_model(teacher, OdeEncoderConfig(steps=4)), images()
    path = attention_over_time(Subject.of(student), pixels)
    first = student(pixels, output_attentions=True, solver="lie_trotter").attentions[0]
    torch.testing.assert_close(path.heads[0].flatten(-2), first[:, :, 0, 1 + registers : 17 + registers])
    layers = teacher_attention(Teacher(teacher), pixels)
    assert layers.times == (1.0, 2.0, 3.0)
    assert layers.query == path.query == CLS
    teacher.set_attn_implementation("eager")
    with torch.no_grad():
        last = teacher(pixels, output_attentions=True).attentions[-1]
    torch.testing.assert_close(layers.heads[-1].flatten(-2), last[:, :, 0, 1 + registers :])


def test_a_narrower_student_of_a_pooling_teacher_is_read_in_the_width_of_its_head():
    teacher = tiny_model(depth="stacked", steps=2, pooling="attention", use_cls_token=False)
    student = get_ode_model(teacher, OdeEncoderConfig(steps=2, hidden_size=16, num_attention_heads=2, registers=3))
    path = attention_over_time(Subject.of(student), tiny_images())
    assert path.query == teacher_attention(Teacher(teacher), tiny_images()).query == POOLING
    assert path.states[0].shape == (3, 16 + 2 + 3, 16), "patches, the teacher's registers and its own"
    share = path.heads.flatten(-2).sum(-1)
    assert ((share > 0) & (share < 1)).all()


def test_looking_changes_nothing():
    one, pixels = subject(attention_dropout=0.5, hidden_dropout=0.5), tiny_images()
    expected = attention_over_time(one, pixels)
    one.model.train()
    one.model.odevit.norm.eval()
    weights = {name: value.clone() for name, value in one.model.state_dict().items()}
    modes = [module.training for module in one.model.modules()]
    state = torch.get_rng_state()
    found = attention_over_time(one, pixels)
    torch.testing.assert_close(found.heads, expected.heads, msg="dropout was not drawn")
    assert not found.heads.requires_grad
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [module.training for module in one.model.modules()]
    assert all(torch.equal(weights[name], value) for name, value in one.model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in one.model.parameters())


def test_a_trajectory_that_leaves_the_numbers_is_said():
    one = subject()
    with pytest.raises(ValueError, match="is not finite after 3 steps"):
        attention_over_time(replace(one, embed=lambda pixels: one.embed(pixels) * torch.inf), tiny_images())


def test_a_field_without_attention_is_said():
    class Decay(Field):
        def dynamics(self, x0):
            return Dynamics({"decay": lambda x, t, _: -x}, anchor=x0)

    with pytest.raises(ValueError, match="makes no attention maps; expected one with attention"):
        attention_over_time(replace(subject(), field=Decay()), tiny_images())


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
    first, second = (each.mean(1) for each in maps(2))
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
def test_shares_that_are_none_are_refused(residual):
    with pytest.raises(ValueError, match="expected"):
        rollout(maps(), residual)


@pytest.mark.parametrize("mass", [0.1, 0.6, 0.95, 1.0])
def test_the_set_that_holds_the_mass_is_sufficient_and_minimal(mass):
    rows = torch.rand(50, 16, dtype=torch.float64)
    chosen = mass_threshold(rows, mass)
    held, total = (rows * chosen).sum(-1), rows.sum(-1)
    assert (held >= mass * total - 1e-12).all()
    smallest = rows.masked_fill(~chosen, torch.inf).amin(-1)
    assert (held - smallest < mass * total).all(), "without its smallest member it does not hold it"
    assert (smallest >= rows.masked_fill(chosen, -torch.inf).amax(-1)).all(), "no larger one was left out"


@pytest.mark.parametrize("mass", [0.0, 1.2, float("nan")])
def test_a_mass_that_is_no_share_is_refused(mass):
    with pytest.raises(ValueError, match=r"expected a share of the row in \(0, 1\]"):
        mass_threshold(torch.rand(3, 4), mass)
