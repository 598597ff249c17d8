"""Parts of a training: where they begin and end, how fast they learn, and what a resumed run knows of the time."""

import math
from itertools import pairwise

import pytest
import torch
from transformers import get_cosine_with_hard_restarts_schedule_with_warmup

from odevit.core.solver_config import SolverConfig
from odevit.train.optimisers import CombinedOptimizer, Muon
from odevit.train.schedule import ListSampler, Schedule, SchedulePhase, parse_solver_config

OWN = SolverConfig("lie_trotter", 12, 12.0)
PARTS = [
    SchedulePhase("layerwise", 0.2, 0.2, 1e-3, 2e-3, 0.25),
    SchedulePhase("rollout", 0.35, 0.55, 4e-4, 5e-4, 0.0),
    SchedulePhase("any", 0.45, 1.0, 1.0, 2.0, 0.5),
]


def optimiser():
    matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    return CombinedOptimizer(Muon([matrix], lr=1.0), torch.optim.AdamW([vector], lr=1.0))


def run(schedule, updates):
    """The part and the rates of Muon and AdamW of every update."""
    seen = []
    for _ in range(updates):
        seen.append((schedule.phase.name, *(group["lr"] for group in schedule.optimizer.param_groups)))
        schedule.optimizer.step()
        schedule.step()
    return seen


def test_parts_begin_at_their_update_and_have_their_own_rates():
    seen = run(Schedule(optimiser(), PARTS, 20), 20)
    assert [name for name, *_ in seen] == ["layerwise"] * 4 + ["rollout"] * 7 + ["any"] * 9
    # forced: a warm-up of one update of four, then a cosine over the other three.
    heights = [0.0] + [(1 + math.cos(math.pi * n / 3)) / 2 for n in range(3)]
    assert [muon for _, muon, _ in seen[:4]] == pytest.approx([2e-3 * height for height in heights])
    assert [adamw for *_, adamw in seen[:4]] == pytest.approx([1e-3 * height for height in heights])
    assert seen[4][1:] == pytest.approx((5e-4, 4e-4)), "without a warm-up a part begins at its highest rates"
    assert max(muon for _, muon, _ in seen[11:]) == pytest.approx(2.0 * (1 + math.cos(math.pi * 0.5 / 4.5)) / 2)


def test_what_is_left_of_the_rates_is_where_the_next_part_goes_on():
    parts = [
        SchedulePhase("rollout", 0.5, 0.5, 1e-3, 2e-3, 0.0, final_rate=0.25),
        SchedulePhase("any", 0.5, 1.0, 2.5e-4, 5e-4, 0.0),
    ]
    rates = [adamw for *_, adamw in run(Schedule(optimiser(), parts, 40), 40)]
    assert rates[0] == 1e-3
    assert rates[10] == pytest.approx(1e-3 * (1 + 0.25) / 2), "half way down"
    assert all(earlier > later for earlier, later in pairwise(rates))
    assert rates[20] == 2.5e-4
    assert rates[19] == pytest.approx(2.5e-4, rel=0.02), "no leap"
    assert rates[-1] < 1e-5


def test_restarts_are_those_of_transformers():
    lone = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    theirs = get_cosine_with_hard_restarts_schedule_with_warmup(lone, 4, 40, num_cycles=5)
    heights = []
    for _ in range(41):
        heights.append(lone.param_groups[0]["lr"])
        lone.step()
        theirs.step()
    part = SchedulePhase("all", 1.0, 1.0, 1.0, 1.0, 0.1, cycles=5)
    assert [part.height(n / 40) for n in range(41)] == pytest.approx(heights)
    assert sum(later > earlier for earlier, later in pairwise(heights[4:])) == 4, "four restarts"
    assert part.height(1.0) == 0.0


def test_shares_that_are_not_exact_in_binary_still_end_on_their_update():
    parts = [SchedulePhase(str(n), 0.1, (n + 1) * 0.1, 1.0, 1.0, 0.0) for n in range(10)]
    assert [name for name, *_ in run(Schedule(optimiser(), parts, 10), 10)] == [str(n) for n in range(10)]


def test_a_resumed_schedule_goes_on_where_it_was():
    whole = run(Schedule(optimiser(), PARTS, 20), 20)
    first = Schedule(optimiser(), PARTS, 20)
    run(first, 9)
    state = first.state_dict()
    second = Schedule(optimiser(), PARTS, 20)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(state)
    assert run(second, 11) == whole[9:]
    assert second.get_last_lr() == [group["lr"] for group in second.optimizer.param_groups]


def test_seconds_are_those_of_all_attempts():
    now = [100.0]
    first = Schedule(optimiser(), PARTS, 10**9, seconds=50.0, clock=lambda: now[0])
    now[0] += 20.0
    first.optimizer.step()
    first.step()
    assert (first.progress, first.phase.name) == (0.4, "rollout")
    now[0] += 1000.0  # another process, on another day
    second = Schedule(optimiser(), PARTS, 10**9, seconds=50.0, clock=lambda: now[0])
    second.load_state_dict(first.state_dict())
    now[0] += 10.0
    second.optimizer.step()
    second.step()
    assert (second.elapsed, second.progress, second.phase.name) == (30.0, 0.6, "any")
    now[0] += 90.0
    second.step()
    assert second.progress == 1.0
    assert second.get_last_lr() == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(
    ("text", "solver_config"),
    [
        ("own", OWN),
        ("own:2x", SolverConfig("lie_trotter", 24, 12.0)),
        ("rk4:12", SolverConfig("rk4", 12, 12.0)),
        ("heun:1.5x", SolverConfig("heun", 18, 12.0)),
        ("lie_trotter:8:1.5", SolverConfig("lie_trotter", 12, 18.0)),
        ("euler:0.01x", SolverConfig("euler", 1, 12.0)),
    ],
)
def test_a_way_in_words(text, solver_config):
    assert parse_solver_config(text, OWN) == solver_config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rk5:12", "unknown solver 'rk5'; .* Did you mean 'rk4'"),
        ("dopri5:12", "unknown solver 'dopri5'"),
        ("rk4", "'rk4' names no solver and steps; expected SOLVER:STEPS"),
        ("rk4:0", "names no solver and steps"),
        ("rk4:1.5", "names no solver and steps"),
        ("rk4:12:1:1", "names no solver and steps"),
        ("rk4:12:0.5", "ends before the model's own horizon"),
    ],
)
def test_a_way_that_is_none(text, message):
    with pytest.raises(ValueError, match=message):
        parse_solver_config(text, OWN)


def test_listed_ways_are_drawn_by_seed_and_update():
    ways = (OWN, OWN, OWN.replace("rk4"))
    sampler = ListSampler(ways, seed=3)
    drawn = [sampler.draw(update) for update in range(300)]
    assert drawn == [ListSampler(ways, seed=3).draw(update) for update in range(300)]
    assert drawn != [ListSampler(ways, seed=4).draw(update) for update in range(300)]
    assert 150 < drawn.count(OWN) < 250, "listed twice, drawn twice as often"
    assert sampler.configs == [OWN, OWN.replace("rk4")]
