"""Weights interpolated between knots: values, orders, gradients, cache, compilation."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from torch._dynamo.utils import counters

from odevit.core.attention import ATTENTIONS
from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.time_varying.fade import Fade
from odevit.time_varying.hyper import HyperField
from odevit.time_varying.knot_schedule import KnotSchedule
from odevit.time_varying.knots import MAX_CACHED_BLENDS, KnottedField
from odevit.time_varying.low_rank import LowRankChange
from odevit.train.runner import compile_field
from tests.problems import slope

FIXED = [name for name in SOLVERS if issubclass(SOLVERS[name], FixedStepSolver)]
T = 2.0


def plain(**options):
    return VectorField(8, 2, 2.0, **{"bias": True, "residual_scale": 0.5} | options).double()


def knotted(knots=3, blend="linear", fade=0.0, times=None, **options):
    gate = Fade(T, fade) if fade else None
    knot_schedule = KnotSchedule.of(knots, T, blend, times)
    return KnottedField([plain(fade=gate, **options) for _ in range(knots)], knot_schedule).double()


def change_schedule(count=3, rank=2, blend="linear", knots=1, change_blend=None):
    fields = [plain() for _ in range(knots)]
    changes = [LowRankChange(fields[0], rank) for _ in range(count)]
    field = KnottedField(
        fields, KnotSchedule.of(knots, T, blend), changes, KnotSchedule.of(count, T, change_blend or blend)
    )
    with torch.no_grad():
        for weight in field.changes.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return field.double()


def by_network(rank=2):
    field = HyperField(plain(), T, size=3, rank=rank)
    with torch.no_grad():
        for weight in field.changes.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return field.double()


def tokens(batch=2):
    return torch.randn(batch, 3, 8, dtype=torch.float64)


FIELDS = {
    "linear": knotted,
    "constant": lambda: knotted(blend="constant"),
    "low rank": change_schedule,
    "vectors": lambda: change_schedule(rank=0),
    "constant low rank": lambda: change_schedule(blend="constant"),
    "pieces with straight vectors": lambda: change_schedule(rank=0, blend="constant", knots=3, change_blend="linear"),
    "network": by_network,
}


def test_knot_schedule_gives_knot_and_share():
    linear, pieces = KnotSchedule.of(4, 6.0, "linear"), KnotSchedule.of(4, 6.0, "constant")
    assert [linear(t) for t in (-1.0, 0.0, 1.0, 2.0, 5.0, 6.0, 60.0)] == [
        *[(0, 0.0), (0, 0.0), (0, 0.5), (1, 0.0), (2, 0.5), (3, 0.0), (3, 0.0)]
    ]
    assert [pieces(t)[0] for t in (0.0, 1.4999, 1.5, 3.0 - 1e-15, 4.5, 60.0)] == [0, 0, 1, 2, 3, 3]
    assert KnotSchedule.of(3, 6.0, "linear", [0.0, 0.75, 1.0])(4.5) == (1, 0.0)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_field_at_a_time_has_interpolated_weights(attention):
    field, x, reference = knotted(2, attention=attention), tokens(), plain(attention=attention)
    first, second = (knot.state_dict() for knot in field.knots)
    reference.load_state_dict({name: 0.25 * first[name] + 0.75 * second[name] for name in first})
    torch.testing.assert_close(field(x, 0.75 * T), reference(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(field.at(0.75 * T)(x), reference(x), rtol=1e-12, atol=1e-12)
    assert field.at(T) is field.knots[1], "on a knot nothing is interpolated"


def test_field_at_a_time_can_be_copied_and_cast():
    field, x = knotted(), tokens()
    with torch.no_grad():
        now = field.at(0.3 * T)
        single = copy.deepcopy(now).float()
        torch.testing.assert_close(single(x.float()).double(), now(x), rtol=1e-4, atol=1e-4)
    assert {weight.dtype for weight in field.parameters()} == {torch.float64}


@pytest.mark.parametrize("kind", [kind for kind in FIELDS if kind != "network"])
@pytest.mark.parametrize("solver", ["lie_trotter", "rk4"])
def test_equal_knots_equal_an_autonomous_field_exactly(kind, solver):
    field, x = FIELDS[kind](), tokens()
    for parts in (field.knots, field.changes):
        for part in parts[1:]:
            part.load_state_dict(parts[0].state_dict())
    one = plain()
    one.load_state_dict({name: weight.detach() for name, weight in field._weights((0, 0.0), (0, 0.0)).items()})
    solver_config = {"solver": solver, "steps": 7, "t1": 1.4 * T}
    moving, still = solve(field, x, **solver_config).state, solve(one, x, **solver_config).state
    assert torch.equal(moving, still)
    if not field.changes:
        wanted = torch.autograd.grad(still.square().sum(), list(one.parameters()))
        found = torch.autograd.grad(moving.square().sum(), list(field.parameters()))
        found = [torch.stack(same).sum(dim=0) for same in zip(*_by_knot(found, 3), strict=True)]
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * b.abs().max().item())


def _by_knot(weights, knots):
    size = len(weights) // knots
    return [weights[size * k : size * (k + 1)] for k in range(knots)]


@pytest.mark.parametrize("times", [None, (0.25, 0.5, 1.0)])
@pytest.mark.parametrize("solver", FIXED)
def test_solvers_keep_their_order_with_knots(solver, times):
    torch.manual_seed(2)
    field, x = knotted(times=times), tokens()
    with torch.no_grad():
        exact = solve(field, x, solver="rk4", steps=256, t1=T).state
        errors = [(solve(field, x, solver=solver, steps=n, t1=T).state - exact).abs().max() for n in (16, 32, 64)]
    assert slope([error.item() for error in errors]) == pytest.approx(SOLVERS[solver].order, abs=0.2)


@pytest.mark.parametrize("solver", FIXED)
def test_constant_pieces_equal_their_fields_in_succession(solver):
    field, x = knotted(4, "constant"), tokens()
    there = solve(field, x, solver=solver, steps=12, t1=T).state
    for knot in field.knots:
        x = solve(knot, x, solver=solver, steps=3, t1=T / 4).state
    torch.testing.assert_close(there, x, rtol=1e-12, atol=1e-12)


def test_dopri5_integrates_across_constant_pieces():
    field, x = knotted(2, "constant"), tokens()
    exact = solve(field, x, solver="rk4", steps=200, t1=T).state
    found = solve(field, x, solver=SOLVERS["dopri5"](rtol=1e-8, atol=1e-8, max_steps=10_000), t1=T)
    assert found.ok
    torch.testing.assert_close(found.state, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", ["dopri5", "tsit5"])
@pytest.mark.parametrize("away", [True, False])
def test_adaptive_solver_does_not_skip_a_narrow_piece(solver, away):
    """The field is the same before and after the narrow piece, so that the error estimate would miss it."""
    times = (0.0, 0.5, 0.52)
    field, x = knotted(3, "constant", times=times), tokens()
    field.knots[2].load_state_dict(field.knots[0].state_dict())
    borders = [*(T * time for time in times), T] if away else [T, *(T * time for time in reversed(times))]
    pieces = field.knots if away else reversed(field.knots)
    method = SOLVERS[solver](rtol=1e-6, atol=1e-7)
    found = solve(field, x, solver=method, t0=borders[0], t1=borders[-1], steps=4, save="all")
    assert found.ok
    assert len(found.states) == 5, "nothing is saved at the jumps"
    for piece, (begin, end) in zip(pieces, pairwise(borders), strict=True):
        x = solve(piece, x, solver="rk4", steps=200, t0=begin, t1=end).state
    torch.testing.assert_close(found.state, x, rtol=1e-4, atol=1e-4)


def test_weights_are_constant_after_the_last_knot():
    for kind, field in FIELDS.items():
        field, x = field(), tokens()
        later = [field(x, t) for t in (T, 1.5 * T, 40 * T)]
        assert all(torch.equal(later[0], again) for again in later), kind
        assert field.autonomous_from <= T
    last = knotted()
    assert torch.equal(last(x, 9 * T), last.knots[-1](x))


@pytest.mark.parametrize("solver", FIXED)
def test_fade_stops_exactly_and_changes_nothing_before_the_horizon(solver):
    field, x = knotted(fade=0.25), tokens()
    without = knotted()
    without.load_state_dict(field.state_dict())
    far = solve(field, x, solver=solver, steps=64, t1=8 * T, save="all")
    before = solve(without, x, solver=solver, steps=8, t1=T).state
    torch.testing.assert_close(far.states[8], before, rtol=1e-12, atol=1e-12)
    assert not torch.equal(far.states[8], far.states[10])
    assert all(torch.equal(far.states[10], later) for later in far.states[11:])
    assert field.autonomous_from == 1.25 * T


def test_fade_factor_is_a_cosine():
    fade = Fade(4.0, 0.5)
    values = [fade.factor(t) for t in (0.0, 4.0, 4.5, 5.0, 5.5, 6.0, 60.0)]
    assert values == pytest.approx([1.0, 1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0, 0.0])
    still = plain(fade=fade)
    seen = []
    assert not still.dynamics(tokens()).with_attention_hook(seen.append)(tokens(), 7.0).any()
    assert len(seen) == 1


@pytest.mark.parametrize("kind", FIELDS)
def test_gradients_of_knots_equal_finite_differences(kind):
    field, x = FIELDS[kind](), tokens()
    weights = list(field.parameters())
    directions = [torch.randn_like(weight) for weight in weights]

    def loss():
        return solve(field, x, solver="heun", steps=6, t1=T).state.square().mean()

    gradients = torch.autograd.grad(loss(), weights)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    eps, values = 1e-5, []
    with torch.no_grad():
        for shift in (eps, -2 * eps):
            torch._foreach_add_(weights, directions, alpha=shift)
            values.append(loss())
    slope_found = (values[0] - values[1]) / (2 * eps)
    slope_told = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    torch.testing.assert_close(slope_told, slope_found, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("solver", ["lie_trotter", "rk4"])
def test_flat_knots_equal_weights_interpolated_one_by_one(kind, solver, monkeypatch):
    field, x = FIELDS[kind](), tokens()
    assert (field._flat_knots() is None) == (kind in ("constant", "network")), "nothing is interpolated"

    def answer():
        state = solve(field, x, solver=solver, steps=7, t1=1.2 * T).state
        return state, torch.autograd.grad(state.square().mean(), list(field.parameters()))

    state, gradients = answer()
    monkeypatch.setattr(KnottedField, "_flat_knots", lambda self: None)
    one_by_one, wanted = answer()
    assert torch.equal(state, one_by_one)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_weights_of_two_dtypes_are_not_flattened():
    field = knotted()
    field.knots.to(torch.float32)
    for knot in field.knots:
        knot.components["mlp"].double()
    assert field._flat_knots() is None
    with torch.no_grad():
        assert knotted()._flat_knots() is None, "without gradients the cache is used"


@pytest.mark.parametrize("kind", FIELDS)
def test_checkpointed_and_adjoint_gradients_of_knots_equal_plain_ones(kind):
    pytest.importorskip("torchdiffeq")
    field, x = FIELDS[kind](), tokens()

    def gradients(**solver_config):
        return torch.autograd.grad(
            solve(field, x, t1=T, **solver_config).state.square().mean(), list(field.parameters())
        )

    steps = 96 if kind == "network" else 24  # up to 32 oscillations
    kept = gradients(solver="rk4", steps=steps)
    for a, b in zip(kept, gradients(solver="rk4", steps=steps, checkpoint=True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    if field.knot_schedule.blend == "linear":
        adaptive = SOLVERS["dopri5"](rtol=1e-7, atol=1e-7)
        for a, b in zip(kept, gradients(solver=adaptive, adjoint=True), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_knots_share_the_dropout_masks_of_a_trajectory():
    options = {"dropout": 0.4, "attention_dropout": 0.4, "drop_path": 0.4}
    field, x, one = knotted(3, **options).train(), tokens(8), plain(**options).train()
    for knot in field.knots:
        knot.load_state_dict(one.state_dict())
    states = []
    for each in (field, one):
        torch.manual_seed(5)
        states.append(solve(each, x, solver="rk4", steps=5, t1=T).state)
    assert torch.equal(*states)


def test_blends_are_cached_without_gradients_only():
    field = knotted().eval()
    x = tokens()
    with torch.no_grad():
        field(x, 0.3)
        made = dict(field._cache.blends[0])
        field(x, 0.3)
        assert len(made) == 1
        assert all(field._cache.blends[0][place] is one for place, one in made.items())
        assert field.at(0.3) not in made.values(), "a returned field may be cast and changed"
        for n in range(3 * MAX_CACHED_BLENDS):
            field(x, T * n / (3 * MAX_CACHED_BLENDS))
        assert 1 < len(field._cache.blends[0]) <= MAX_CACHED_BLENDS
    field(x, 0.3)
    assert not field._cache.blends[0], "with gradients blends are not cached"
    with torch.no_grad():
        field(x, 0.3)
    assert not field.train()._cache.blends[0]
    assert set(field.state_dict()) == {name for name, _ in field.named_parameters()}
    assert not copy.deepcopy(field.eval())._cache.blends[0]


def _fused_step(field):
    """A fused optimiser does not change the version of the weights."""
    optimiser = torch.optim.AdamW(field.parameters(), lr=0.1, fused=True)
    field(tokens(), 0.3 * T).square().mean().backward()
    optimiser.step()


CHANGES = {
    "a fused step": _fused_step,
    "in place": lambda field: torch._foreach_mul_([weight.detach() for weight in field.parameters()], 2.0),
    "loaded": lambda field: field.load_state_dict(knotted().state_dict()),
    "assigned": lambda field: field.load_state_dict(knotted().state_dict(), assign=True),
    "data": lambda field: [setattr(weight, "data", 2 * weight.data) for weight in field.parameters()],
    "not counted": lambda field: ([weight.data.mul_(2) for weight in field.parameters()], field.eval()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_cache_is_renewed_when_a_weight_changes(change):
    field, x = knotted().eval(), tokens()

    @torch.no_grad()
    def answers():
        return [each(x, 0.3 * T) for each in (field, copy.deepcopy(field))]

    before, fresh = answers()
    assert torch.equal(before, fresh)
    CHANGES[change](field)
    after, fresh = answers()
    assert torch.equal(after, fresh)
    assert not torch.equal(before, after)


def test_blends_of_inference_mode_are_not_used_with_gradients():
    field, x = knotted().eval().requires_grad_(False), tokens()
    with torch.inference_mode():
        before = field(x, 0.3)
    with torch.no_grad():
        dynamics = field.dynamics(x)
        assert torch.equal(dynamics(x, 0.3), before)
        _, pushed = torch.func.jvp(lambda y: field.dynamics(x).with_attention_hook(lambda _: None)(y, 0.3), (x,), (x,))
    grown = dynamics(x.requires_grad_(), 0.3)
    assert torch.equal(grown, before)
    assert torch.autograd.grad(grown.sum(), x)[0].isfinite().all()
    assert pushed.isfinite().all()
    assert torch.equal(field(x, 0.3), before)


@pytest.mark.parametrize("kind", FIELDS)
def test_blends_of_autocast_are_not_used_without_it(kind):
    field, x = FIELDS[kind]().float().eval(), tokens().float()
    with torch.no_grad():
        before = field(x, 0.3)
        field.eval()  # clears the cache
        with torch.autocast("cpu", torch.bfloat16):
            field(x, 0.3)
        assert torch.equal(field(x, 0.3), before)


def test_knots_work_with_functional_call_and_vmap():
    field, x = knotted().eval(), tokens()
    weights = {name: weight.detach() for name, weight in field.named_parameters()}
    with torch.no_grad():
        wanted = field(x, 0.3)
        both = {name: torch.stack([weight, weight]) for name, weight in weights.items()}
        found = torch.func.vmap(lambda own: torch.func.functional_call(field, own, (x, 0.3)))(both)
    torch.testing.assert_close(found, torch.stack([wanted, wanted]), rtol=1e-12, atol=1e-12)


def test_eight_threads_give_the_same_states():
    field, x = knotted(4).eval(), tokens()
    ways = [{"solver": solver, "steps": steps} for solver in ("rk4", "lie_trotter") for steps in (5, 6, 7, 8)]

    def answer(solver_config):
        with torch.no_grad():
            return solve(field, x, t1=T, **solver_config).state

    wanted = [answer(solver_config) for solver_config in ways]
    field.eval()  # clears the cache
    barrier = threading.Barrier(8)

    def ask(n):
        barrier.wait()
        return [torch.equal(answer(ways[(n + k) % 8]), wanted[(n + k) % 8]) for k in range(16)]

    with ThreadPoolExecutor(8) as pool:
        assert all(all(right) for right in pool.map(ask, range(8)))


@pytest.mark.parametrize("kind", ["linear", "constant low rank"])
def test_knotted_field_compiles_to_one_graph(kind):
    torch._dynamo.reset()
    field, x = FIELDS[kind]().eval(), tokens()
    compiled = torch.compile(
        lambda y: solve(field, y, solver="midpoint", steps=3, t1=T).state, fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(x), solve(field, x, solver="midpoint", steps=3, t1=T).state)


def test_compiled_branches_are_not_recompiled_at_other_times():
    torch._dynamo.reset()
    counters.clear()
    field, x = knotted(5), tokens()
    uncompiled = solve(field, x, solver="rk4", steps=8, t1=T).state
    compile_field(field, backend="eager")
    torch.testing.assert_close(solve(field, x, solver="rk4", steps=8, t1=T).state, uncompiled, rtol=1e-12, atol=0)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs <= 8, "attention and MLP, with and without gradient to the state, on a knot and between two"
    solve(field, x, solver="rk4", steps=11, t1=2 * T)
    assert counters["stats"]["unique_graphs"] == graphs


def test_solve_refuses_steps_that_skip_a_constant_piece():
    field, x = knotted(4, "constant"), tokens()
    for steps in (1, 2, 3):
        with pytest.raises(ValueError, match=rf"steps={steps} from t=0 to t=2 would skip . of the 4 constant pieces"):
            solve(field, x, solver="euler", steps=steps, t1=T)
    solve(field, x, solver="euler", steps=2, t1=T / 2)
    solve(field, x, solver="euler", steps=4, t0=T, t1=1e-9)
    solve(field, x, solver="euler", steps=1, t0=T, t1=3 * T)
    solve(knotted(4), x, solver="euler", steps=1, t1=T)
    late = knotted(3, "constant", times=(0.0, 0.5, 0.9))
    for t1 in (T, 0.95 * T):
        with pytest.raises(ValueError, match=r"steps=3 from t=0 to t=.* would skip 1 of the 3 constant pieces"):
            solve(late, x, solver="euler", steps=3, t1=t1)
    solve(late, x, solver="euler", steps=5, t1=T)


def test_approximate_is_exact_at_full_rank_and_optimal_below():
    field = plain()
    wanted = {name: torch.randn_like(weight) for name, weight in field.named_parameters()}
    change, narrow = LowRankChange(field, 8).double(), LowRankChange(field, 1).double()
    assert not any(added.any() for added in change.weights(wanted).values()), "initially 0"
    change.approximate(wanted)
    narrow.approximate(wanted)
    for name, added in change.weights(wanted).items():
        torch.testing.assert_close(added, wanted[name], rtol=1e-4, atol=1e-5)
    matrix = "components.mlp.body.up_proj.weight"
    left_out = torch.linalg.svdvals(wanted[matrix])[1:].square().sum().sqrt()
    torch.testing.assert_close((narrow.weights(wanted)[matrix] - wanted[matrix]).norm(), left_out, rtol=1e-4, atol=0)
