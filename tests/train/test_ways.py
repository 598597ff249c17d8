"""Drawn ways are a pure function of the seed and the update."""

import json
from collections import Counter
from pathlib import Path

import pytest

from odevit.core.solver_config import SolverConfig
from odevit.distill.distill_task import DistillTask
from odevit.distill.distillation import compose_distillation
from odevit.errors import ConfigError
from odevit.train.classifier import ClassifierTask
from odevit.train.compose import compose_recipe
from odevit.train.recipe import Recipe, TrainRecipe
from odevit.train.schedule import SolverSampler

OWN = SolverConfig("lie_trotter", 8, 1.0)
RECORDED = json.loads((Path(__file__).parent / "draws.json").read_text())


@pytest.mark.parametrize("drawn", RECORDED, ids=lambda drawn: " ".join(drawn["words"]) or "odevit distill")
def test_a_recipe_draws_what_it_drew_when_its_records_were_made(drawn):
    """draws.json was written by odevit 0.1.0, before ways were complete."""
    compose, task = (compose_distillation, DistillTask) if drawn["distill"] else (compose_recipe, ClassifierTask)
    # A distillation takes these two in Python only.
    python_only = ("train.solvers=[euler,heun]", "train.own=0.5") if drawn["distill"] else ()
    recipe = compose([word for word in drawn["words"] if word not in python_only])
    if {*python_only} & {*drawn["words"]}:
        recipe.train.solvers, recipe.train.own_share = ["euler", "heun"], 0.5
    task = task(recipe)
    task.batches = range(drawn["batches"])
    sampler = task._make_sampler(SolverConfig(*drawn["own"]), hold=drawn["distill"])
    ways = [sampler.draw(drawn["first"] + n) for n in range(len(drawn["ways"]))]
    assert [f"{solver_config.name}:{solver_config.steps}:{solver_config.horizon:g}" for solver_config in ways] == drawn[
        "ways"
    ]
    assert {*ways} <= {*sampler.configs}


def test_the_same_update_draws_the_same_way():
    a, b = (SolverSampler(OWN, [4, 8], [1.0, 2.0], seed=3) for _ in range(2))
    assert [a.draw(n) for n in range(50)] == [b.draw(n) for n in range(50)]
    other = SolverSampler(OWN, [4, 8], [1.0, 2.0], seed=4)
    assert [a.draw(n) for n in range(50)] != [other.draw(n) for n in range(50)]


def test_all_pairs_are_drawn_about_equally_often():
    sampler = SolverSampler(OWN, [4, 8, 16], [1.0, 2.0])
    counts = Counter(sampler.draw(n) for n in range(6000))
    assert set(counts) == set(sampler.configs)
    assert all(850 < count < 1150 for count in counts.values())


def test_no_step_is_longer_than_the_longest():
    sampler = SolverSampler(OWN.replace(horizon=6.0), [6, 12, 24], [1.0, 2.0, 3.0], longest_step=1.5)
    drawn = {sampler.draw(n) for n in range(2000)}
    assert drawn == set(sampler.configs)
    assert {solver_config.horizon for solver_config in drawn if solver_config.steps == 6} == {6.0}
    assert {solver_config.horizon for solver_config in drawn if solver_config.steps == 12} == {6.0, 12.0, 18.0}
    # Step counts stay equally likely: a coarse grid is not seen less often because fewer horizons go with it.
    coarse = sum(sampler.draw(n).steps == 6 for n in range(6000))
    assert 1850 < coarse < 2150


def test_steps_that_fit_no_horizon_are_refused():
    with pytest.raises(ConfigError, match="2 steps over the shortest horizon 6"):
        SolverSampler(OWN.replace(horizon=6.0), [2, 12], longest_step=1.0)


def test_a_share_of_the_batches_takes_the_models_own_way():
    sampler = SolverSampler(OWN, [6], [6.0], solvers=["heun", "rk4", "rk4"], own_share=0.5)
    counts = Counter(sampler.draw(n) for n in range(6000))
    heun, rk4 = SolverConfig("heun", 6, 6.0), SolverConfig("rk4", 6, 6.0)
    assert set(counts) == set(sampler.configs) == {OWN, heun, rk4}
    assert 2850 < counts[OWN] < 3150
    assert 1.8 < counts[rk4] / counts[heun] < 2.2


def test_coarse_batches_come_first():
    options = {"steps": [12, 6, 24], "horizons": [6.0, 12.0], "solvers": ["heun", "rk4"]}
    sampler, later = SolverSampler(OWN, **options, coarse=30), SolverSampler(OWN, **options)
    assert {sampler.draw(n) for n in range(30)} == {SolverConfig("heun", 6, 6.0)} == {sampler.coarsest}
    assert [sampler.draw(n) for n in range(30, 90)] == [later.draw(n) for n in range(30, 90)]
    assert set(sampler.configs) == set(later.configs)


def test_a_held_way_takes_more_steps_of_the_same_size():
    sampler = SolverSampler(OWN.replace(horizon=4.0), [5], [0.5, 1.0, 1.5], hold=True)
    assert set(sampler.configs) == {SolverConfig("lie_trotter", 5, 4.0), SolverConfig("lie_trotter", 8, 4.0 * 8 / 5)}


def test_a_recipe_counts_its_coarse_part_in_optimiser_steps():
    task = ClassifierTask(Recipe(train=TrainRecipe(epochs=10, steps=[4, 8], accumulate=2, coarse_first=0.4)))
    task.batches = range(7)  # four updates per epoch, the last of half the size
    assert task._make_sampler(OWN).coarse == 16
