"""Splits are disjoint, complete, stratified and fixed."""

from __future__ import annotations

import torch

from odevit.data.splits import stratified_split

LABELS = torch.cat([torch.full((n,), c) for c, n in enumerate((100, 50, 10, 3, 1))])
LABELS = LABELS[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))]


def test_stratified_split_is_disjoint_and_complete() -> None:
    kept, held = stratified_split(LABELS, 0.1, 0)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(len(LABELS)))


def test_stratified_split_takes_the_fraction_of_each_class_and_leaves_one() -> None:
    kept, held = stratified_split(LABELS, 0.1, 0)
    assert torch.bincount(LABELS[held], minlength=5).tolist() == [10, 5, 1, 1, 0]
    assert torch.bincount(LABELS[kept], minlength=5).tolist() == [90, 45, 9, 2, 1]


def test_stratified_split_is_fixed_by_the_seed() -> None:
    assert torch.equal(stratified_split(LABELS, 0.2, 3)[1], stratified_split(LABELS, 0.2, 3)[1])
    assert not torch.equal(stratified_split(LABELS, 0.2, 3)[1], stratified_split(LABELS, 0.2, 4)[1])


def test_stratified_split_with_fraction_0_holds_nothing_out() -> None:
    kept, held = stratified_split(LABELS, 0.0, 0)
    assert len(held) == 0
    assert len(kept) == len(LABELS)


def test_stratified_split_of_a_larger_fraction_contains_the_smaller() -> None:
    small, large = stratified_split(LABELS, 0.1, 0)[1], stratified_split(LABELS, 0.4, 0)[1]
    assert set(small.tolist()) <= set(large.tolist())
