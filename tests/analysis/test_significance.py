"""Errors of proportions, differences and correlations."""

import math

import numpy as np
import pytest
import torch

from odevit.analysis.significance import Proportion, Z, correlation, paired_error, quantiles, standard_error


def test_proportion_has_binomial_error_and_wilson_interval():
    share = Proportion(90, 100)
    assert share.value == 0.9
    assert share.error == pytest.approx(0.03)
    # Wilson (1927), as tabulated.
    assert share.interval == pytest.approx((0.8256, 0.9448), abs=1e-3)


@pytest.mark.parametrize(("hits", "side"), [(0, 1), (50, 0)])
def test_proportion_of_none_or_all_has_an_interval(hits, side):
    share = Proportion(hits, 50)
    assert share.error == 0.0
    low, high = share.interval
    assert 0.0 <= low <= share.value <= high <= 1.0
    assert abs((low, high)[side] - share.value) > 0.03
    assert math.isnan(Proportion(0, 0).value)


@pytest.mark.parametrize(("hits", "count", "threshold"), [(72, 72, 0.95), (1, 1, 0.95), (97, 100, 0.95), (4, 10, 0.5)])
def test_sample_size_is_the_least_that_excludes_the_threshold(hits, count, threshold):
    share = Proportion(hits, count)
    least = share.sample_size(threshold)

    def decided(n):  # Wilson's interval around this share of n images excludes p0 where |p - p0| > z sqrt(p0 q0 / n)
        return abs(share.value - threshold) >= Z * math.sqrt(threshold * (1 - threshold) / n)

    assert decided(least)
    assert not decided(least - 1)
    assert Proportion(19, 20).sample_size(0.95) is None


def test_paired_error_matches_repeated_draws():
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(20000, generator=generator) < 0.9
    b = a ^ (torch.rand(20000, generator=generator) < 0.05)
    differences = [(a[i : i + 200].double() - b[i : i + 200].double()).mean().item() for i in range(0, 20000, 200)]
    assert paired_error(a, b) * 100**0.5 == pytest.approx(np.std(differences), rel=0.2)
    assert paired_error(a, a) == 0.0


def test_correlation_matches_pearson_and_its_p_value():
    generator = np.random.default_rng(0)
    x = generator.normal(size=12)
    y = 0.5 * x + generator.normal(size=12)
    found = correlation(x.tolist(), y.tolist())
    assert found.r == pytest.approx(np.corrcoef(x, y)[0, 1])
    scipy_stats = pytest.importorskip("scipy.stats")
    assert found.p == pytest.approx(scipy_stats.pearsonr(x, y).pvalue, abs=0.03)
    assert correlation(x.tolist(), (2 * x).tolist()).p < 1e-3
    assert correlation([*x.tolist(), math.nan], [*y.tolist(), 0.0]).count == 12


def test_correlation_of_too_few_or_constant_values_is_none():
    assert correlation([1.0, 2.0], [1.0, 2.0]) is None
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert correlation([], []) is None


def test_quantiles_ignore_values_that_are_not_finite():
    shares = {"smallest": 0.0, "median": 0.5, "largest": 1.0}
    rows = torch.tensor([[math.inf, 3.0, 1.0, math.nan, 2.0], [math.nan] * 5])
    for values, expected in zip(quantiles(rows, shares).values(), (1.0, 2.0, 3.0), strict=True):
        assert values[0] == expected
        assert values[1].isnan()
    assert all(value.isnan() for value in quantiles(torch.tensor([]), shares).values())


def test_proportion_of_a_mask_and_standard_error_of_a_mean():
    assert Proportion.of(torch.tensor([True, False, True])) == Proportion(2, 3)
    assert standard_error(torch.tensor([1.0, 3.0])) == pytest.approx(1.0)
    assert standard_error(torch.tensor([1.0])) is None
