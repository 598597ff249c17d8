"""flip, crop, zoom, affine: selected samples move as defined, the others stay."""

from __future__ import annotations

import math

import pytest
import torch

from odevit.data.augment.geometry import (
    affine_matrix,
    random_affine,
    random_crop,
    random_flip,
    random_zoom,
    warp,
)

IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
U = torch.rand(8, 6, generator=torch.Generator().manual_seed(1))
ZERO = torch.zeros(6)


def test_random_flip_twice_is_the_identity() -> None:
    once = random_flip(IMAGES, U[0], 1.0)
    assert torch.equal(once, IMAGES.flip(-1))
    assert torch.equal(random_flip(once, U[0], 1.0), IMAGES)


def test_random_flip_mirrors_samples_below_the_probability() -> None:
    flipped = (random_flip(IMAGES, U[0], 0.4) != IMAGES).flatten(1).any(1)
    assert torch.equal(flipped, U[0] < 0.4)


def test_random_crop_of_zero_is_the_identity() -> None:
    assert torch.equal(random_crop(IMAGES, U[:2], 0), IMAGES)


@pytest.mark.parametrize(("size", "padding"), [((8, 8), 2), ((5, 8), 4)])
def test_random_crop_is_a_window_of_the_padded_image(size: tuple[int, int], padding: int) -> None:
    images = IMAGES[:, :, : size[0], : size[1]]
    result = random_crop(images, U[:2], padding)
    padded = torch.nn.functional.pad(images, (padding,) * 4, "reflect")
    for n in range(len(images)):
        top, left = (int(U[k, n] * (2 * padding + 1)) for k in range(2))
        assert torch.equal(result[n], padded[n, :, top : top + size[0], left : left + size[1]])


def test_random_crop_offsets_are_equally_likely() -> None:
    u = torch.rand(2, 20_000, generator=torch.Generator().manual_seed(2))
    image = torch.zeros(20_000, 1, 9, 9)
    image[:, :, 4, 4] = 1  # too far from the edge to be mirrored into the crop
    where = random_crop(image, u, 2).mean((0, 1)) * 25
    assert torch.allclose(where[2:7, 2:7], torch.ones(5, 5), atol=0.12)
    assert float(where.sum()) == pytest.approx(25, abs=1e-3)


def test_random_crop_refuses_padding_as_large_as_the_image() -> None:
    with pytest.raises(ValueError, match="crop=8 for images of 8x8"):
        random_crop(IMAGES, U[:2], 8)


def test_random_zoom_is_a_window_within_the_image() -> None:
    """Of two ramps, one down and one to the right, the slopes are the window's sides and the ends say where it lies."""
    count, height, width = 400, 24, 36
    u = torch.rand(4, count, generator=torch.Generator().manual_seed(3))
    down = torch.linspace(0.5, height - 0.5, height)[:, None].expand(height, width)
    right = torch.linspace(0.5, width - 0.5, width)[None].expand(height, width)
    zoomed = random_zoom(torch.stack([down, right]).expand(count, 2, height, width), u, 0.3)
    inside = zoomed[:, :, 1:-1, 1:-1]  # where no neighbour can lie beyond the edge
    rows, columns = inside[:, 0].diff(dim=1), inside[:, 1].diff(dim=2)
    tall, wide = rows.mean((1, 2)), columns.mean((1, 2))
    torch.testing.assert_close(rows, tall[:, None, None].expand_as(rows), atol=1e-3, rtol=0)
    torch.testing.assert_close(columns, wide[:, None, None].expand_as(columns), atol=1e-3, rtol=0)
    assert 0 < float(inside[:, 0].min()) <= float(inside[:, 0].max()) < height
    assert 0 < float(inside[:, 1].min()) <= float(inside[:, 1].max()) < width
    uncut = (tall < 1 - 1e-4) & (wide < 1 - 1e-4)
    torch.testing.assert_close((tall * wide)[uncut], (0.3 + 0.7 * u[0])[uncut], atol=1e-3, rtol=0)
    assert 3 / 4 - 1e-3 < float((tall / wide)[uncut].min()) < float((tall / wide)[uncut].max()) < 4 / 3 + 1e-3
    assert float(uncut.float().mean()) > 0.5


def test_warp_with_the_identity_matrix() -> None:
    matrix = affine_matrix(ZERO, ZERO, ZERO, ZERO, ZERO)
    torch.testing.assert_close(warp(IMAGES, matrix), IMAGES, atol=1e-5, rtol=0)
    assert torch.equal(random_affine(IMAGES, U[:5], 0.0), IMAGES)


def test_random_affine_keeps_unselected_samples_bit_for_bit() -> None:
    moved = (random_affine(IMAGES, U[:5], 0.5) != IMAGES).flatten(1).any(1)
    assert torch.equal(moved, U[0] < 0.5)


def test_warp_with_a_quarter_turn_and_a_whole_shift() -> None:
    quarter = affine_matrix(ZERO + math.pi / 2, ZERO, ZERO, ZERO, ZERO)
    torch.testing.assert_close(warp(IMAGES, quarter), IMAGES.rot90(1, (2, 3)), atol=1e-5, rtol=0)
    shift = affine_matrix(ZERO, ZERO, ZERO, ZERO + 2 / 8, ZERO)
    torch.testing.assert_close(warp(IMAGES, shift)[..., :-2], IMAGES[..., 2:], atol=1e-5, rtol=0)


def test_warp_rotates_an_oblong_image_without_shear() -> None:
    image = torch.zeros(1, 1, 5, 21)
    image[0, 0, 2, 12] = 1  # two pixels right of the centre
    turned = warp(image, affine_matrix(*(torch.tensor([a]) for a in (math.pi / 2, 0.0, 0.0, 0.0, 0.0))))
    assert float(turned[0, 0, 0, 10]) == pytest.approx(1, abs=1e-5)
