"""EpochSampler: the order of samples and its share per rank."""

from __future__ import annotations

import pytest
import torch

from odevit.data.sampler import EpochSampler
from odevit.errors import ConfigError


def shown(plan: EpochSampler, epoch: int = 0) -> torch.Tensor:
    order = plan.order(epoch)
    return torch.cat([order[plan.positions(b)] for b in range(len(plan))])


def test_sampler_has_every_sample_once_per_epoch() -> None:
    plan = EpochSampler(103, 10, shuffle=True, seed=1)
    assert len(plan) == 11
    assert torch.equal(shown(plan).sort().values, torch.arange(103))
    assert not torch.equal(shown(plan, 0), shown(plan, 1))


def test_sampler_order_does_not_depend_on_the_batch_size() -> None:
    assert torch.equal(
        shown(EpochSampler(100, 10, shuffle=True, seed=1)), shown(EpochSampler(100, 4, shuffle=True, seed=1))
    )


def test_sampler_without_shuffle_keeps_the_order() -> None:
    assert torch.equal(shown(EpochSampler(7, 3)), torch.arange(7))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_sampler_positions_of_all_ranks_are_those_of_one_process(world: int, drop_last: bool) -> None:
    one = EpochSampler(101, 12, shuffle=True, drop_last=drop_last)
    ranks = [
        EpochSampler(101, 12 // world, shuffle=True, drop_last=drop_last, rank=r, world=world) for r in range(world)
    ]
    assert {len(plan) for plan in ranks} == {len(one)}
    for batch in range(len(one)):
        assert torch.equal(torch.cat([plan.positions(batch) for plan in ranks]), one.positions(batch))


def test_sampler_order_reads_each_block_once() -> None:
    blocks = torch.arange(400) // 10
    order = EpochSampler(400, 16, shuffle=True).order(3, blocks=blocks)
    assert torch.equal(order.sort().values, torch.arange(400))
    for window in blocks[order].split(80):
        assert window.unique().numel() == 8
    assert order[:80].diff().eq(1).sum() < 10  # and shuffled inside


def test_sampler_reports_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EpochSampler(0, 0, rank=2, world=2)
    assert len(caught.value.problems) == 3


def test_sampler_refuses_drop_last_that_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match="drop_last leaves nothing; set batch_size=5 or less"):
        EpochSampler(10, 8, drop_last=True, world=2)
