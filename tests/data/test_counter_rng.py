"""Random numbers from counters are uniform, independent, and a function of their arguments."""

from __future__ import annotations

import pytest
import torch

from odevit.data.counter_rng import ORDER_STREAM, SPLIT_STREAM, permutation, uniforms

MANY = torch.arange(1 << 17)


def uniform(seed: int, epoch: int, index: torch.Tensor, stream: int) -> torch.Tensor:
    return uniforms(seed, epoch, index, stream + 1)[stream]


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(0, 0, 0), (1, 0, 3), (0, 7, 31), (2**40, 10**6, 5), (-3, 2, 1)])
def test_uniforms_are_uniform(seed: int, epoch: int, stream: int) -> None:
    u = uniform(seed, epoch, MANY, stream).double()
    count = len(u)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert abs(float(u.mean()) - 1 / 2) < 5 * (1 / 12 / count) ** 0.5
    assert abs(float(u.var()) - 1 / 12) < 5 * (1 / 180 / count) ** 0.5
    bins = 256
    counts = torch.histc(u, bins, 0, 1)
    chi_square = float(((counts - count / bins) ** 2 / (count / bins)).sum())
    assert abs(chi_square - (bins - 1)) < 5 * (2 * (bins - 1)) ** 0.5


def test_uniforms_of_streams_epochs_seeds_and_neighbours_are_independent() -> None:
    base = uniform(0, 0, MANY, 0)
    others = [uniform(0, 0, MANY, s) for s in (1, 2, 40)]
    others += [uniform(0, e, MANY, 0) for e in (1, 2, 300)]
    others += [uniform(s, 0, MANY, 0) for s in (1, 2, 12345)]
    others += [base.roll(1), base.roll(2)]
    limit = 5 / len(MANY) ** 0.5
    for other in others:
        assert abs(correlation(base, other)) < limit
        assert abs(correlation((base - 0.5) ** 2, (other - 0.5) ** 2)) < limit


def test_uniforms_depend_on_seed_and_epoch_separately() -> None:
    assert not torch.equal(uniform(1, 0, MANY, 0), uniform(0, 1, MANY, 0))
    assert not torch.equal(uniform(0, 1, MANY, 0), uniform(0, 0, MANY, 1))


def test_uniforms_belong_to_the_sample_not_to_the_batch() -> None:
    index = torch.arange(1000)
    whole = uniform(3, 4, index, 5)
    cut = torch.cat([uniform(3, 4, part, 5) for part in index.split(37)])
    shuffled = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole, cut)
    assert torch.equal(whole[shuffled], uniform(3, 4, index[shuffled], 5))


def test_uniforms_with_a_larger_count_begin_with_the_same_numbers() -> None:
    index = torch.tensor([0, 5, 2**40, 17])
    assert torch.equal(uniforms(9, 8, index, 6), uniforms(9, 8, index, 40)[:6])


def test_uniforms_accept_the_epoch_as_a_tensor() -> None:
    index = torch.arange(50)
    assert torch.equal(uniforms(9, 8, index, 6), uniforms(9, torch.tensor(8), index, 6))


def test_uniforms_and_permutation_equal_stored_values() -> None:
    # A saved run is resumed by these numbers: they must never change.
    known = [0.23465979099273682, 0.7682768702507019, 0.5392617583274841]
    assert uniform(0, 0, torch.arange(3), 0).tolist() == known


def test_permutation_is_complete_and_depends_on_seed_epoch_and_stream() -> None:
    order = permutation(0, 0, 5000)
    assert torch.equal(order.sort().values, torch.arange(5000))
    assert torch.equal(order, permutation(0, 0, 5000))
    for other in (permutation(1, 0, 5000), permutation(0, 1, 5000), permutation(0, 0, 5000, stream=SPLIT_STREAM)):
        assert abs(correlation(order.float(), other.float())) < 0.08
    assert ORDER_STREAM != SPLIT_STREAM


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_uniforms_on_the_gpu_equal_those_on_the_cpu() -> None:
    index = torch.arange(10_000)
    assert torch.equal(uniforms(1, 2, index, 8), uniforms(1, 2, index.cuda(), 8).cpu())
    assert torch.equal(permutation(1, 2, 10_000), permutation(1, 2, 10_000, device="cuda").cpu())
