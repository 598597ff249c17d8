"""JaSMin against its definition, its gradient and its bound."""

import math

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.objectives import jasmin
from odevit.objectives.jasmin import JaSMin, g

EPS = torch.finfo(torch.float64).eps


def random_rows(*shape):
    """Rows from nearly flat to sharp."""
    sharpness = torch.logspace(-1, 0.5, shape[-2], dtype=torch.float64).unsqueeze(-1)
    return (sharpness * torch.randn(shape, dtype=torch.float64)).softmax(-1)


def slow_g(row, k):
    p = sorted(row.tolist(), reverse=True)
    return p[k - 1] * (1 - p[k - 1] + p[k])


def slow_jasmin(maps, k):
    total = 0.0
    for head in maps.flatten(0, 1):
        total += max(math.log(slow_g(r, 1)) - (math.log(slow_g(r, k)) if k else 0.0) for r in head)
    return total / (maps.shape[0] * maps.shape[1])


@pytest.mark.parametrize("k", [1, 2, 5])
def test_g_matches_its_definition(k):
    rows = random_rows(20, 6)
    torch.testing.assert_close(g(rows, k), torch.tensor([slow_g(r, k) for r in rows], dtype=torch.float64))


@pytest.mark.parametrize("k", [0, 2, 3, 8])
def test_jasmin_matches_its_definition(k):
    maps = random_rows(2, 3, 7, 9)
    # Logarithms of g's as small as 1e-12 are at most 28, and each is rounded.
    assert jasmin(maps, k).item() == pytest.approx(slow_jasmin(maps, k), rel=0, abs=64 * 28 * EPS)


@pytest.mark.parametrize("keys", [3, 10, 65])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 20.0])
def test_g_bounds_the_eigenvalues_of_the_softmax_jacobian(keys, concentration):
    rows = torch.distributions.Dirichlet(torch.full((keys,), concentration, dtype=torch.float64)).sample((200,))
    jacobian = rows.diag_embed() - rows.unsqueeze(-1) * rows.unsqueeze(-2)
    eigenvalues = torch.linalg.eigvalsh(jacobian).flip(-1)
    bounds = torch.stack([g(rows, k) for k in range(1, keys)], dim=-1)
    # Eigenvalues are known within a small multiple of n eps |J|, and |J| <= 1/2.
    assert (eigenvalues[:, :-1] <= bounds + 8 * keys * EPS).all()
    assert (bounds[:, 0] <= 0.5 + 4 * EPS).all()
    # g_1 >= g_2 >= ..., so the loss of k >= 2 is never below its value for flat rows.
    assert (bounds.diff(dim=-1) <= 4 * EPS).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [3, 7, 66])
def test_jasmin_of_flat_rows_is_0(dtype, keys):
    maps = torch.zeros(2, 2, keys, keys).softmax(-1).to(dtype)
    assert [jasmin(maps, k).item() for k in {2, keys // 2 + 1, keys - 1}] == [0.0] * len({2, keys // 2 + 1, keys - 1})


@pytest.mark.parametrize("k", [0, 2, 4])
def test_jasmin_gradient_matches_finite_differences(k):
    logits = torch.randn(2, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: jasmin(z.softmax(-1), k), logits)
    maps = logits.detach().softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: jasmin(p, k), maps)


def test_jasmin_gradient_reaches_the_sharpest_row_of_each_head():
    maps = random_rows(2, 3, 7, 9).requires_grad_()
    jasmin(maps, 2).backward()
    rows = maps.grad.abs().sum(-1) > 0
    assert (rows.sum(-1) == 1).all()
    sharpest = (g(maps, 1) / g(maps, 2)).argmax(-1)
    assert torch.equal(rows.int().argmax(-1), sharpest)


def follow(k, start):
    """The sorted row that descending the loss leads to, from a row of six with `start` as its largest probability."""
    others = torch.linspace(1.0, 2.0, 5, dtype=torch.float64)
    row = torch.cat([torch.tensor([start], dtype=torch.float64), (1 - start) * others / others.sum()])
    logits = row.log().view(1, 1, 1, 6).requires_grad_()
    for i in range(1000):
        (slope,) = torch.autograd.grad(jasmin(logits.softmax(-1), k), logits)
        logits = (logits - 10.0 / (100 + i) * slope).detach().requires_grad_()
    return logits.softmax(-1).flatten().sort(descending=True).values


def test_jasmin_k_equalises_the_k_plus_1_largest_probabilities():
    three, six = follow(2, start=0.6), follow(5, start=0.6)
    assert (three[0] - three[2]).item() < 0.01 < (three[2] - three[5]).item()
    assert (six[0] - six[5]).item() < 0.01


def test_jasmin_k_0_flattens_flat_rows_and_collapses_sharp_ones():
    assert follow(0, start=0.4)[0].item() < 0.2
    assert follow(0, start=0.8)[0].item() > 0.99


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [0, 2, 4])
def test_jasmin_of_one_hot_rows_is_finite_and_above_flat_rows(dtype, k):
    logits = (1e4 * torch.eye(6)).expand(1, 2, 6, 6).clone().requires_grad_()
    loss = jasmin(logits.softmax(-1).to(dtype), k)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert loss.item() == pytest.approx(math.log(2e-12) if k == 0 else math.log(2), rel=1e-5)


def field_and_state():
    return VectorField(16, 2, leak=0.5).double(), 2.0 * torch.randn(2, 5, 16, dtype=torch.float64)


@pytest.mark.parametrize("name", ["euler", "heun", "lie_trotter"])
def test_jasmin_penalty_is_the_mean_over_all_maps(name):
    field, x0 = field_and_state()
    solution = solve(field, x0, solver=name, steps=3, penalties={"jasmin": JaSMin(k=2)}, save=SaveAt(attentions=True))
    expected = torch.stack([jasmin(maps, 2) for maps in solution.attentions]).mean()
    torch.testing.assert_close(solution.penalties["jasmin"], expected)
    assert expected > 0


@pytest.mark.parametrize("name", ["heun", "lie_trotter"])
def test_jasmin_penalty_has_a_gradient_with_and_without_checkpointing(name):
    field, x0 = field_and_state()
    gradients = []
    for checkpoint in (False, True):
        field.zero_grad()
        settings = {"solver": name, "steps": 7, "penalties": {"jasmin": JaSMin(k=2)}}
        solve(field, x0, **settings, checkpoint=checkpoint).penalties["jasmin"].backward()
        gradients.append({n: p.grad.clone() for n, p in field.named_parameters() if p.grad is not None})
    plain, recomputed = gradients
    assert plain["components.attention.body.q_proj.weight"].abs().max() > 1e-4
    assert plain.keys() == recomputed.keys()
    for parameter, gradient in plain.items():
        torch.testing.assert_close(gradient, recomputed[parameter])


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (1, r"compares g_1 with itself and is always 0; pass k=2, or k=0"),
        (-1, r"k=-1; expected 0 or a whole number from 2 on"),
        (2.0, r"k=2.0; expected 0 or a whole number"),
        (True, r"k=True; expected 0 or a whole number"),
    ],
)
def test_jasmin_refuses_a_bad_k(k, message):
    with pytest.raises(ValueError, match=message):
        jasmin(random_rows(1, 1, 4, 4), k)
    with pytest.raises(ValueError, match=message):
        JaSMin(k)


@pytest.mark.parametrize(("k", "keys"), [(4, 4), (9, 4), (0, 1)])
def test_jasmin_refuses_too_few_keys(k, keys):
    with pytest.raises(ValueError, match=rf"a row has {keys}; pass a smaller k"):
        jasmin(torch.full((1, 1, 4, keys), 1 / keys), k)


@pytest.mark.parametrize(("k", "message"), [(0, r"k=0; expected 1 or more"), (4, r"g_4 needs the 5 largest keys")])
def test_g_refuses_k_beyond_the_row(k, message):
    with pytest.raises(ValueError, match=message):
        g(torch.full((4,), 0.25), k)


def test_jasmin_penalty_refuses_a_field_without_attention():
    with pytest.raises(ValueError, match=r"the field made none; integrate a field with attention"):
        solve(lambda x, t: -x, torch.ones(1, 2, 3), solver="euler", steps=1, penalties={"jasmin": JaSMin()})
