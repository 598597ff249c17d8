"""attention_bound against dense Jacobians."""

import pytest
import torch

from odevit.analysis import lipschitz
from odevit.analysis.lipschitz import attention_bound, local_lipschitz
from odevit.core.attention import ATTENTIONS, DotProductAttention
from odevit.core.base import Dynamics
from odevit.core.field import VectorField
from odevit.objectives.jasmin import g

TOKENS, DIM, HEADS = 5, 6, 2
ROUNDING = 16 * TOKENS * DIM * torch.finfo(torch.float64).eps
"""Of the singular values of a whole Jacobian, relatively."""


def dense_norm(function, x):
    """|d function / dx|_2 of each sample, from the whole Jacobian."""
    norms = []
    for one in x.split(1):
        jacobian = torch.func.jacrev(function)(one)
        norms.append(torch.linalg.matrix_norm(jacobian.reshape(one.numel(), one.numel()), ord=2))
    return torch.stack(norms)


def random_attention(scale, bias=True):
    attention = DotProductAttention(DIM, HEADS, bias).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return attention.requires_grad_(False)


@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
def test_attention_bound_is_never_below_the_dense_jacobian(scale, size):
    for seed in range(5):
        torch.manual_seed(seed)
        attention = random_attention(scale, bias=seed % 2 == 0)
        x = size * torch.randn(6, TOKENS, DIM, dtype=torch.float64)
        dense = dense_norm(lambda one, attention=attention: attention(one, hook=lambda _: None), x)
        assert (dense <= attention_bound(attention, x) * (1 + ROUNDING)).all()


def test_attention_bound_is_exact_for_uniform_attention():
    """Queries of zero: P is the constant 1/T, G is linear, and the bound is what it says: |W_V| |W_O| for one head."""
    attention = DotProductAttention(DIM, 1).double().requires_grad_(False)
    attention.q_proj.weight.zero_()
    attention.k_proj.weight.zero_()
    attention.o_proj.weight.copy_(2.0 * torch.eye(DIM))
    x = torch.randn(3, TOKENS, DIM, dtype=torch.float64)
    expected = dense_norm(lambda one: attention(one, hook=lambda _: None), x)
    torch.testing.assert_close(attention_bound(attention, x), expected)


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_attention_bound_is_tighter_than_with_one_half(scale, monkeypatch):
    attention = random_attention(scale)
    x = torch.randn(20, TOKENS, DIM, dtype=torch.float64)
    sharp = attention_bound(attention, x)
    assert g(torch.rand(50, 4).softmax(-1), 1).max() <= 0.5
    monkeypatch.setattr(lipschitz, "g", lambda rows, k: torch.full_like(rows[..., 0], 0.5))
    coarse = attention_bound(attention, x)
    assert (sharp <= coarse).all()
    assert (sharp < coarse).any()


def test_attention_bound_ignores_a_constant_on_all_keys():
    attention = random_attention(1.0)
    x = torch.randn(4, TOKENS, DIM, dtype=torch.float64)
    before = attention_bound(attention, x)
    attention.k_proj.bias.add_(torch.randn(DIM, dtype=torch.float64))
    attention.v_proj.bias.add_(torch.randn(DIM, dtype=torch.float64))
    torch.testing.assert_close(attention_bound(attention, x), before)


def test_attention_bound_of_one_token_is_the_norm_of_its_matrices():
    attention = random_attention(1.0)
    x = torch.randn(3, 1, DIM, dtype=torch.float64)
    dense = dense_norm(lambda one: attention(one, hook=lambda _: None), x)
    assert (dense <= attention_bound(attention, x) * (1 + ROUNDING)).all()


def test_attention_branch_stays_below_norm_times_bound():
    field = VectorField(DIM, HEADS, norm="layer").double().requires_grad_(False)
    branch = field.components["attention"]
    x = torch.randn(4, TOKENS, DIM, dtype=torch.float64)
    measured = local_lipschitz(Dynamics({"attention": branch}, anchor=x), x, iterations=100).value
    limit = dense_norm(branch.norm, x) * attention_bound(field.attention, branch.norm(x))
    assert (measured <= limit).all()


def test_attention_bound_is_per_sample_and_accepts_float32():
    attention = random_attention(1.0).float()
    x = torch.randn(3, TOKENS, DIM)
    together = attention_bound(attention, x)
    alone = torch.cat([attention_bound(attention, one) for one in x.split(1)])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together, attention_bound(attention.double(), x.double()))


@pytest.mark.parametrize("kind", [name for name in ATTENTIONS if name != "dot"])
def test_attention_bound_refuses_other_attentions(kind):
    attention = ATTENTIONS[kind](DIM, HEADS)
    with pytest.raises(ValueError, match=r"expected DotProductAttention.*attention='dot'"):
        attention_bound(attention, torch.randn(1, TOKENS, DIM))
