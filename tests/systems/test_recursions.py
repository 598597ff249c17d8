"""Mixture of recursions: only active tokens are computed, and padding changes nothing."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from odevit.core.base import Request
from odevit.core.solve import solve
from odevit.errors import ConfigError
from odevit.systems import recursions as routing
from odevit.systems.recursions import MAX_GROUPS, TokenChoice, group_by_count
from tests.tiny import tiny_config, tiny_images, tiny_model

PATCHES = slice(1, 17)
"""Of 19 tokens: CLS, 16 patches, 2 registers."""
BLOCK = {"solver": "lie_trotter", "steps": 1, "t1": 1.0}


def recursions(steps=3, **options):
    torch.manual_seed(0)
    settings = options.pop("settings", {})
    model = tiny_model(depth="recursions", depth_options=options, steps=steps, **settings)
    with torch.no_grad():
        model.depth.router.scores.weight.normal_(std=0.5)
    return model


def block(field, x):
    return solve(field, x, **BLOCK).state


@torch.no_grad()
def written_out(depth, x, keeps):
    """One image, recursion by recursion; `keeps(r, patches, left)` gives the active patches and their w."""
    x, left = block(depth.first, x), list(range(16))
    for r in range(depth.solver_config.steps):
        left, weights = keeps(r, x[0, PATCHES], left)
        going = [0, *(1 + patch for patch in left), 17, 18]
        w = torch.ones(len(going))
        w[1:-2] = torch.tensor(weights)
        y = x[:, going]
        for field in depth.blocks:
            y = block(field, y)
        x = x.clone()
        x[:, going] += w[:, None] * (y - x[:, going])
    return block(depth.last, x)


@pytest.mark.parametrize("capacities", [None, [1.0, 1.0, 1.0], [0.5, 0.5, 0.07]])
@torch.no_grad()
def test_expert_router_computes_the_top_patches_of_each_recursion(capacities):
    depth = (model := recursions(capacities=capacities, blocks=2)).depth
    x0 = model.embed(tiny_images())
    solution = depth(x0, Request(save="all"))
    counts = {None: [16, 10, 5], 1.0: [16, 16, 16], 0.5: [8, 8, 1]}[capacities and capacities[0]]

    def keeps(r, patches, left):
        u = (patches @ depth.router.scores.weight[r]).sigmoid().tolist()
        best = sorted(sorted(left, key=lambda patch: -u[patch])[: counts[r]])
        return best, [u[patch] for patch in best]

    for sample in range(3):
        expected = written_out(depth, x0[sample : sample + 1], keeps)
        torch.testing.assert_close(solution.state[sample], expected[0], rtol=1e-4, atol=1e-4)
    worth = 2 + 2 * sum(3 + count for count in counts) / 19
    assert solution.evaluations.tolist() == pytest.approx([worth] * 3, rel=1e-5)
    moved = [(b - a).abs().amax(dim=-1) > 0 for a, b in zip(solution.states[1:-2], solution.states[2:-1], strict=True)]
    assert [int(each.sum()) for each in moved] == [3 * (3 + count) for count in counts]
    assert all(each[:, [0, 17, 18]].all() for each in moved), "CLS and registers are always active"


@torch.no_grad()
def test_token_router_equals_single_images_written_out():
    depth = (model := recursions(router="token")).depth
    x0 = model.embed(tiny_images(4))
    solution = depth(x0)
    for sample in range(4):
        here = x0[sample : sample + 1]
        p = depth.router.scores(block(depth.first, here)[0, PATCHES]).softmax(dim=-1)
        chosen = p.argmax(dim=-1).tolist()

        def keeps(r, _, left, p=p, chosen=chosen):
            left = [patch for patch in left if chosen[patch] >= r]
            return left, [float(p[patch, r]) if chosen[patch] == r else 1.0 for patch in left]

        torch.testing.assert_close(solution.state[sample], written_out(depth, here, keeps)[0], rtol=1e-4, atol=1e-4)
        worth = 2 + sum(3 + sum(each >= r for each in chosen) for r in range(3)) / 19
        assert solution.evaluations[sample].item() == pytest.approx(worth, rel=1e-5)
    assert len(set(solution.evaluations.tolist())) > 1, "images need different numbers of evaluations"


KINDS = {kind: {"attention": kind} for kind in ("dot", "cosine", "l2", "hopfield")}
KINDS |= {"flow": {"attention": "hopfield", "attention_options": {"flow": True}}}
KINDS |= {"normed and turned": {"qk_norm": True, "rope_theta": 100.0}}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_padding_of_a_group_changes_no_state_or_gradient(settings, monkeypatch):
    """States and gradients of a batch in one group equal those of single images."""
    monkeypatch.setattr(routing, "MAX_GROUPS", 1)
    depth = (model := recursions(router="token", price=0.0, settings=settings)).train().depth
    x0, direction = model.embed(tiny_images(4)).detach(), torch.randn(4, 19, 32)
    counts = []

    def gradients(samples):
        model.zero_grad()
        state = depth(x0[samples]).state
        (state * direction[samples]).sum().backward()
        return state.detach(), [weight.grad.clone() for weight in depth.parameters() if weight.grad is not None]

    monkeypatch.setattr(
        routing, "group_by_count", lambda *args: (counts.append(each) or each for each in group_by_count(*args))
    )
    state, together = gradients(slice(None))
    fills = any(group.mask is not None for group in counts)
    assert fills == (not settings.get("attention_options")), "a flow has no token mask, so its groups are exact"
    singles = [gradients(slice(n, n + 1)) for n in range(4)]
    torch.testing.assert_close(state, torch.cat([alone for alone, _ in singles]), rtol=1e-4, atol=1e-5)
    for whole, *parts in zip(together, *(grads for _, grads in singles), strict=True):
        torch.testing.assert_close(whole, sum(parts), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("exact", [False, True])
def test_group_by_count_has_every_image_once_and_little_padding(exact):
    going = torch.rand(200, 64, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 200)[:, None]
    groups = list(group_by_count(going, exact))
    assert sorted(torch.cat([group.samples for group in groups]).tolist()) == list(range(200))
    counts, width = going.sum(dim=1), 0
    for group in groups:
        seen = torch.ones_like(group.patches, dtype=torch.bool) if group.mask is None else group.mask
        assert torch.equal(seen.sum(dim=1), counts[group.samples])
        assert seen.shape[1] == 0 or seen.any(dim=1).all(), (
            "attention without keys is 0 or NaN, depending on the kernel"
        )
        assert (group.patches.shape[1] - counts[group.samples]).max() <= (0 if exact else 64 / MAX_GROUPS)
        for sample, patches, mask in zip(group.samples, group.patches, seen, strict=True):
            assert patches[mask].tolist() == going[sample].nonzero().flatten().tolist()
        width += group.patches.numel()
    assert len(groups) == len(counts.unique()) if exact else len(groups) <= MAX_GROUPS + 1
    assert width == counts.sum() if exact else width < counts.sum() + going.numel() / MAX_GROUPS


def flops(function, *args):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(*args)
    return counter.get_total_flops()


@pytest.mark.parametrize("router", ["expert", "token"])
def test_flops_are_those_of_the_active_tokens(router):
    """The FLOPs of a pass are those of its blocks on the active tokens, and of the scores."""
    model = recursions(router=router)
    depth, x0 = model.depth, model.embed(tiny_images(1))
    solution = depth(x0, Request(save="all"))
    tokens = [
        int(((b - a).abs().amax(dim=-1) > 0).sum())
        for a, b in zip(solution.states[1:-2], solution.states[2:-1], strict=True)
    ]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] < 19
    blocks = sum(flops(block, depth.first, x0[:, :count]) for count in (19, *tokens, 19))
    scores = flops(depth.router.route([16, 10, 5]), x0[:, PATCHES], 0) * (3 if router == "expert" else 1)
    assert flops(depth, x0) == blocks + scores
    assert blocks < flops(block, depth.first, x0) * 5


def test_token_router_cost_is_smallest_for_even_depths():
    router = TokenChoice(2, 2)
    with torch.no_grad():
        router.scores.weight.copy_(torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
    first, second = torch.eye(2)
    turn = router.route([])
    even = turn(torch.stack([first, second])[None], 0).cost
    uneven = turn(torch.stack([first, first])[None], 0).cost
    assert even.item() == pytest.approx(1.0)
    assert uneven.item() == pytest.approx(2 * torch.tensor([4.0, 0.0]).softmax(0)[0].item())


@torch.no_grad()
def test_rotary_positions_of_active_patches_do_not_change():
    field = recursions(settings={"rope_theta": 100.0}).depth.first
    x, kept = torch.randn(2, 19, 32), torch.tensor([[0, 3, 7, 18], [0, 4, 11, 17]])
    attention = field.components["attention"]
    q, k, v = (heads.unbind() for heads in attention.body.projected(attention.norm(x), attention.body.rotation(x)))
    some = torch.stack([x[sample, kept[sample]] for sample in range(2)])
    found = field.dynamics(x, kept).component("attention", some, 0.0)
    for sample in range(2):
        here = kept[sample]
        scores = q[sample][:, here] @ k[sample][:, here].mT / attention.body.head_dim**0.5
        mixed = (scores.softmax(dim=-1) @ v[sample][:, here]).transpose(0, 1).flatten(1)
        torch.testing.assert_close(found[sample], attention.body.o_proj(mixed), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_capacities_are_shares_at_other_image_sizes():
    model = recursions()
    wide = model(torch.randn(2, 3, 16, 32), interpolate_pos_encoding=True).trajectory
    assert wide.evaluations[0].item() == pytest.approx(2 + (3 * 3 + 32 + 21 + 10) / 35)
    with pytest.raises(ConfigError, match=r"recursion 3 of 3 has the capacity 0\.333 and keeps none of 2 patches"):
        model(torch.randn(2, 3, 4, 8), interpolate_pos_encoding=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacities": [1.0, 0.05]}, "recursion 2 of 2 has the capacity 0.05 and keeps none of 16 patches"),
        ({"capacities": [1.0, 0.0]}, "expected None or several, each a number > 0 and <= 1"),
        ({"capacities": [0.5, 0.8]}, "an inactive patch stays inactive"),
        ({"capacities": [1.0]}, "expected 2, one for each of the steps"),
        ({"capacities": [1.0, 0.5], "router": "token"}, "with router=token the number of patches is not fixed"),
        ({"router": "both"}, "expected expert or token"),
    ],
)
def test_invalid_capacities_are_refused(options, said):
    with pytest.raises(ConfigError) as error:
        tiny_model(depth="recursions", depth_options=options, steps=2)
    assert said in str(error.value)


def test_output_attentions_are_refused_with_the_token_router():
    with pytest.raises(ConfigError, match="images keep different numbers of tokens"):
        recursions(router="token")(tiny_images(), output_attentions=True)
    maps = recursions()(tiny_images(), output_attentions=True).attentions
    assert [each.shape[-1] for each in maps] == [19, 19, 13, 8, 19]
    assert tiny_config(depth="recursions").depth_options is None
