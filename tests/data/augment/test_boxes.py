"""Boxes lie inside the image and have the given area; erasing changes nothing else."""

from __future__ import annotations

import torch

from odevit.data.augment.geometry import random_box, random_erasing

COUNT = 2000
U = torch.rand(5, COUNT, generator=torch.Generator().manual_seed(0))


def test_random_box_covers_height_times_width() -> None:
    height, width = (U[0] * 9).floor(), (U[1] * 13).floor()
    mask = random_box(U[2:4], height, width, (8, 12))
    assert torch.equal(mask.sum((1, 2, 3)), (height * width).long())


def test_random_box_of_full_size_covers_the_image() -> None:
    assert bool(random_box(U[:2], torch.full((COUNT,), 8.0), torch.full((COUNT,), 8.0), (8, 8)).all())


def test_random_box_reaches_every_corner_evenly() -> None:
    mask = random_box(U[:2], torch.full((COUNT,), 2.0), torch.full((COUNT,), 2.0), (4, 4)).float().mean((0, 1))
    expected = torch.tensor([1.0, 2.0, 2.0, 1.0])
    assert torch.allclose(mask * 9, expected[:, None] * expected, atol=0.35)


def test_random_erasing_fills_only_the_box() -> None:
    images = torch.rand(COUNT, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 0.4
    erased = random_erasing(images, U, 0.25, fill=0.5)
    changed = erased != images
    assert torch.equal(changed.flatten(1).any(1), U[0] < 0.25)
    assert bool((erased[changed] == 0.5).all())
    assert torch.equal(changed[:, 0], changed[:, 2])
    area = changed[U[0] < 0.25, 0].flatten(1).float().mean(1)
    assert float(area.min()) > 0.005
    assert float(area.max()) < 0.40
    assert abs(float(area.mean()) - 0.175) < 0.02


def test_random_erasing_with_probability_0_is_the_identity() -> None:
    images = torch.rand(COUNT, 1, 4, 4)
    assert torch.equal(random_erasing(images, U, 0.0), images)
