"""RandAugment draws each operation as often, and applies exactly the one drawn."""

from __future__ import annotations

import math

import pytest
import torch

from odevit.data.augment import colour
from odevit.data.augment.geometry import affine_matrix, warp
from odevit.data.augment.policy import OPERATIONS, rand_augment

IMAGES = torch.randint(0, 256, (1, 3, 9, 9), generator=torch.Generator().manual_seed(0)) / 255


def drawn(name: str, sign: float = 0.9) -> torch.Tensor:
    """Numbers that make one sample draw `name` (sign >= 0.5: positive)."""
    return torch.tensor([[(OPERATIONS.index(name) + 0.5) / len(OPERATIONS)], [sign]])


def test_identity_is_drawn_too() -> None:
    assert torch.equal(rand_augment(IMAGES, drawn("identity"), 1, 30), IMAGES)


@pytest.mark.parametrize("name", OPERATIONS[1:])
def test_every_operation_does_something_and_keeps_the_range(name: str) -> None:
    changed = rand_augment(IMAGES, drawn(name), 1, 15)
    assert not torch.equal(changed, IMAGES)
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1 + 1e-6


def test_the_operation_drawn_is_the_one_applied() -> None:
    torch.testing.assert_close(
        rand_augment(IMAGES, drawn("contrast", 0.1), 1, 30), colour.contrast(IMAGES, torch.tensor([0.1]))
    )
    zero = torch.zeros(1)
    turned = warp(IMAGES, affine_matrix(torch.tensor([math.radians(15)]), zero, zero, zero, zero))
    torch.testing.assert_close(rand_augment(IMAGES, drawn("rotate"), 1, 15), turned)


def test_geometric_operations_are_composed() -> None:
    there_and_back = torch.cat([drawn("rotate", 0.9), drawn("rotate", 0.1)])
    torch.testing.assert_close(rand_augment(IMAGES, there_and_back, 2, 20), IMAGES, atol=1e-5, rtol=0)


def test_magnitude_zero_of_geometry_and_blends_is_the_identity() -> None:
    for name in ("rotate", "shear_x", "shift_y", "brightness", "sharpness", "posterize"):
        torch.testing.assert_close(rand_augment(IMAGES, drawn(name), 1, 0), IMAGES, atol=1e-5, rtol=0)


def test_no_operations_is_the_identity() -> None:
    assert torch.equal(rand_augment(IMAGES, torch.zeros(0, 1), 0, 9), IMAGES)
