"""Each attention equals its formula, written out head by head."""

import math

import pytest
import torch

from odevit.attention.variants import CosineAttention, L2Attention
from odevit.core.attention import ATTENTIONS, DotProductAttention

DIM, HEADS = 12, 3
D = DIM // HEADS


@pytest.fixture
def x():
    return torch.randn(2, 7, DIM, dtype=torch.float64)


def per_head(linear, x, head):
    return x @ linear.weight[head * D : (head + 1) * D].T


def by_hand(attention, x, scores_and_values):
    """concat_h softmax(scores_h) v_h, through W_O."""
    heads = []
    for head in range(HEADS):
        scores, v = scores_and_values(head)
        heads.append(scores.softmax(-1) @ v)
    return torch.cat(heads, -1)


def test_dot_product_attention_equals_its_formula(x):
    attention = DotProductAttention(DIM, HEADS).double()

    def formula(h):
        q, k, v = (per_head(p, x, h) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        return q @ k.mT / math.sqrt(D), v

    expected = by_hand(attention, x, formula) @ attention.o_proj.weight.T
    torch.testing.assert_close(attention(x), expected)


def test_cosine_attention_equals_its_formula(x):
    attention = CosineAttention(DIM, HEADS).double()

    def formula(h):
        q, k, v = (per_head(p, x, h) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        return 10 * torch.cosine_similarity(q.unsqueeze(2), k.unsqueeze(1), dim=-1), v

    torch.testing.assert_close(attention(x), by_hand(attention, x, formula) @ attention.o_proj.weight.T)


def test_l2_attention_equals_its_formula(x):
    attention = L2Attention(DIM, HEADS).double()

    def formula(h):
        w_q = attention.q_proj.weight[h * D : (h + 1) * D].T
        w_v = attention.v_proj.weight[h * D : (h + 1) * D].T
        q = x @ w_q
        distance = (q.unsqueeze(2) - q.unsqueeze(1)).square().sum(-1)
        return -distance / math.sqrt(D), x @ (w_q @ w_q.T / math.sqrt(D)) @ w_v

    torch.testing.assert_close(attention(x), by_hand(attention, x, formula) @ attention.o_proj.weight.T)


def test_l2_attention_stays_within_its_lipschitz_bound():
    """Kim et al.: Lip <= sqrt(N/d) (4 phi^-1(N-1) + 1) sqrt(sum_h |W_Q^h|^2 |W_V^h|^2) |W_O|, phi(x) = x e^{x+1}."""
    attention = L2Attention(DIM, HEADS).double()
    n = 6
    inverse = torch.tensor(0.0, dtype=torch.float64)
    for _ in range(50):  # Newton for x e^{x+1} = N - 1
        e = torch.exp(inverse + 1)
        inverse = inverse - (inverse * e - (n - 1)) / (e * (inverse + 1))

    def norm(matrix):
        return torch.linalg.matrix_norm(matrix, ord=2)

    heads = sum(
        norm(attention.q_proj.weight[h * D : (h + 1) * D]) ** 2
        * norm(attention.v_proj.weight[h * D : (h + 1) * D]) ** 2
        for h in range(HEADS)
    )
    bound = math.sqrt(n / D) * (4 * inverse + 1) * heads.sqrt() * norm(attention.o_proj.weight)
    for scale in (0.1, 1.0, 10.0, 100.0):
        x = scale * torch.randn(1, n, DIM, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(attention, x).reshape(n * DIM, n * DIM)
        assert norm(jacobian) <= bound


def test_dot_product_attention_is_not_lipschitz():
    """The Jacobian of dot-product attention is unbounded: the bound above is not trivial."""
    attention = DotProductAttention(DIM, HEADS).double()
    x = torch.randn(1, 6, DIM, dtype=torch.float64)
    x[0, 0] = 0  # a token with a flat row of attention is where the Jacobian grows with |x|^2

    def size(scale):
        jacobian = torch.autograd.functional.jacobian(attention, scale * x)
        return torch.linalg.matrix_norm(jacobian.reshape(6 * DIM, 6 * DIM), ord=2).item()

    assert size(100.0) > 50 * size(1.0)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_maps_sum_to_one_and_a_hook_changes_no_output(name):
    attention = ATTENTIONS[name](DIM, HEADS).double()
    x = torch.randn(2, 7, DIM, dtype=torch.float64)
    maps = []
    watched = attention(x, hook=maps.append)
    torch.testing.assert_close(watched, attention(x))
    assert len(maps) == 1
    assert maps[0].shape == (2, HEADS, 7, 7)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, HEADS, 7, dtype=torch.float64))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_equivariant_to_permutations_of_tokens(name):
    attention = ATTENTIONS[name](DIM, HEADS).double()
    x, order = torch.randn(2, 7, DIM, dtype=torch.float64), torch.randperm(7)
    torch.testing.assert_close(attention(x)[:, order], attention(x[:, order]))
