"""Mixup and cutmix: targets follow the shares of the images."""

from __future__ import annotations

import pytest
import torch

from odevit.data.augment.mix import cutmix, mixup, partner_of, soft_targets, symmetric_beta

COUNT = 64
LABELS = torch.arange(COUNT) % 7
TARGETS = soft_targets(LABELS, 7, 0.1)
# Every image is flat and its colour tells which it was.
IMAGES = (torch.arange(COUNT) / COUNT)[:, None, None, None].expand(COUNT, 3, 10, 10).contiguous()
U = torch.rand(3, COUNT, generator=torch.Generator().manual_seed(0))


def test_partner_of_exchanges_neighbours() -> None:
    assert partner_of(torch.arange(6)).tolist() == [1, 0, 3, 2, 5, 4]
    assert partner_of(torch.arange(5)).tolist() == [1, 0, 3, 2, 4]
    assert partner_of(torch.arange(1)).tolist() == [0]
    assert partner_of(torch.zeros(0, 3)).shape == (0, 3)


def test_mixup_blends_images_and_targets_alike() -> None:
    images, targets = mixup(IMAGES, TARGETS, U[0])
    expected = U[0] * IMAGES[:, 0, 0, 0] + (1 - U[0]) * partner_of(IMAGES)[:, 0, 0, 0]
    torch.testing.assert_close(images[:, 1, 4, 4], expected)
    torch.testing.assert_close(targets.sum(1), torch.ones(COUNT))
    torch.testing.assert_close(targets, U[0][:, None] * TARGETS + (1 - U[0])[:, None] * partner_of(TARGETS))


def test_cutmix_targets_equal_the_area() -> None:
    images, targets = cutmix(IMAGES, TARGETS, U[0], U[1:3])
    own = (images == IMAGES).float().mean((1, 2, 3))
    foreign = (images == partner_of(IMAGES)).float().mean((1, 2, 3))
    torch.testing.assert_close(own + foreign, torch.ones(COUNT))
    torch.testing.assert_close(targets, own[:, None] * TARGETS + foreign[:, None] * partner_of(TARGETS))
    torch.testing.assert_close(targets.sum(1), torch.ones(COUNT))
    assert float((own - U[0]).abs().max()) < 0.11  # sides are whole pixels


def test_mixup_and_cutmix_with_keep_1_are_the_identity() -> None:
    one = torch.ones(COUNT)
    for images, targets in (mixup(IMAGES, TARGETS, one), cutmix(IMAGES, TARGETS, one, U[:2])):
        assert torch.equal(images, IMAGES)
        assert torch.equal(targets, TARGETS)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 8.0])
def test_symmetric_beta_has_the_quantiles_of_scipy(alpha: float) -> None:
    special = pytest.importorskip("scipy.special")
    u = torch.linspace(0, 0.999, 1000)
    expected = torch.from_numpy(special.betaincinv(alpha, alpha, u.double().numpy()))
    assert float((symmetric_beta(u, alpha).double() - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("alpha", [0.2, 0.8, 4.0])
def test_symmetric_beta_has_the_moments_of_the_distribution(alpha: float) -> None:
    u = (torch.arange(100_000) + 0.5) / 100_000
    x = symmetric_beta(u, alpha).double()
    assert float(x.mean()) == pytest.approx(0.5, abs=1e-4)
    assert float(x.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=5e-3)
    assert bool((x.diff() >= 0).all())


def test_soft_targets_with_smoothing() -> None:
    targets = soft_targets(torch.tensor([2, 0]), 4, 0.2)
    torch.testing.assert_close(targets, torch.tensor([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]]))
    assert soft_targets(torch.tensor([1]), 3).tolist() == [[0.0, 1.0, 0.0]]
