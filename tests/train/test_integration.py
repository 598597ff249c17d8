"""Drawn integrations are a pure function of the seed and the step."""

from collections import Counter

import pytest

from odevit.errors import ConfigError
from odevit.train import IntegrationSampler
from odevit.train.assemble import make_sampler
from odevit.train.integration import Drawn
from odevit.train.recipe import Recipe, TrainRecipe


def test_the_same_step_draws_the_same_pair():
    a, b = (IntegrationSampler([4, 8], [1.0, 2.0], seed=3) for _ in range(2))
    assert [a.draw(n) for n in range(50)] == [b.draw(n) for n in range(50)]
    other = IntegrationSampler([4, 8], [1.0, 2.0], seed=4)
    assert [a.draw(n) for n in range(50)] != [other.draw(n) for n in range(50)]


def test_all_pairs_are_drawn_about_equally_often():
    sampler = IntegrationSampler([4, 8, 16], [1.0, 2.0], seed=0)
    counts = Counter(sampler.draw(n) for n in range(6000))
    assert set(counts) == set(sampler.ways)
    assert all(850 < count < 1150 for count in counts.values())


def test_no_step_is_longer_than_the_longest():
    sampler = IntegrationSampler([6, 12, 24], [6.0, 12.0, 18.0], seed=0, longest_step=1.5)
    drawn = {sampler.draw(n) for n in range(2000)}
    assert drawn == set(sampler.ways)
    assert {horizon for _, steps, horizon in drawn if steps == 6} == {6.0}
    assert {horizon for _, steps, horizon in drawn if steps == 12} == {6.0, 12.0, 18.0}
    # Step counts stay equally likely: a coarse grid is not seen less often because fewer horizons go with it.
    coarse = sum(sampler.draw(n).steps == 6 for n in range(6000))
    assert 1850 < coarse < 2150


def test_steps_that_fit_no_horizon_are_refused():
    with pytest.raises(ConfigError, match="2 steps over the shortest horizon 6"):
        IntegrationSampler([2, 12], [6.0], seed=0, longest_step=1.0)


def test_a_share_of_the_batches_stays_with_the_model():
    sampler = IntegrationSampler([6], [6.0], seed=0, solvers=["heun", "rk4", "rk4"], own=0.5)
    counts = Counter(sampler.draw(n) for n in range(6000))
    assert set(counts) == set(sampler.ways) == {Drawn(), Drawn("heun", 6, 6.0), Drawn("rk4", 6, 6.0)}
    assert 2850 < counts[Drawn()] < 3150
    assert 1.8 < counts[Drawn("rk4", 6, 6.0)] / counts[Drawn("heun", 6, 6.0)] < 2.2


def test_steps_and_horizons_do_not_depend_on_what_else_is_drawn():
    """Recorded runs drew neither solvers nor a share; the same seed must still draw the same for them."""
    plain = IntegrationSampler([6, 12], [6.0, 12.0], seed=0)
    drawn = IntegrationSampler([6, 12], [6.0, 12.0], seed=0, solvers=["euler", "rk4"])
    assert [plain.draw(n)[1:] for n in range(100)] == [drawn.draw(n)[1:] for n in range(100)]


def test_coarse_batches_come_first():
    sampler = IntegrationSampler([12, 6, 24], [6.0, 12.0], seed=0, solvers=["heun", "rk4"], coarse=30)
    assert {sampler.draw(n) for n in range(30)} == {Drawn("heun", 6, 6.0)} == {sampler.coarsest}
    later = IntegrationSampler([12, 6, 24], [6.0, 12.0], seed=0, solvers=["heun", "rk4"])
    assert [sampler.draw(n) for n in range(30, 90)] == [later.draw(n) for n in range(30, 90)]
    assert set(sampler.ways) == set(later.ways)


def test_a_recipe_counts_its_coarse_part_in_optimiser_steps():
    recipe = Recipe(train=TrainRecipe(epochs=10, steps=[4, 8], accumulate=2, coarse_first=0.4))
    sampler = make_sampler(recipe, 8, 1.0, batches=7)  # four updates an epoch, the last of half the size
    assert sampler.coarse == 16
