"""Images: checks and subsets."""

from __future__ import annotations

import pytest
import torch

from odevit.data.images import Images
from odevit.data.loading import load_data


def test_images_subset_keeps_labels() -> None:
    pixels = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 2, 2)
    images = Images(pixels, torch.arange(4))
    chosen = images.subset(torch.tensor([3, 1]))
    assert chosen.labels.tolist() == [3, 1]
    assert chosen.pixels[:, 0, 0, 0].tolist() == [3, 1]
    assert len(chosen) == 2
    assert (images.channels, images.size) == (3, (2, 2))


def test_images_refuse_float_pixels_and_missing_labels() -> None:
    with pytest.raises(ValueError, match=r"torch\.float32.*expected torch\.uint8 \[N, C, H, W\]"):
        Images(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="one per image"):
        Images(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_str_of_a_data_set() -> None:
    assert str(load_data()) == "digits: 1,295 train, 143 validation, 359 test; 10 classes, 3x8x8"
