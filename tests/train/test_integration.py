"""Drawn integrations are a pure function of the seed and the step."""

from collections import Counter

from odevit.train import IntegrationSampler


def test_the_same_step_draws_the_same_pair():
    a, b = (IntegrationSampler([4, 8], [1.0, 2.0], seed=3) for _ in range(2))
    assert [a.draw(n) for n in range(50)] == [b.draw(n) for n in range(50)]
    other = IntegrationSampler([4, 8], [1.0, 2.0], seed=4)
    assert [a.draw(n) for n in range(50)] != [other.draw(n) for n in range(50)]


def test_all_pairs_are_drawn_about_equally_often():
    sampler = IntegrationSampler([4, 8, 16], [1.0, 2.0], seed=0)
    counts = Counter(sampler.draw(n) for n in range(6000))
    assert set(counts) == set(sampler.pairs)
    assert all(850 < count < 1150 for count in counts.values())
