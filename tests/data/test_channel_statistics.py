"""Mean and standard deviation equal numpy's, on the training split only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from odevit.data.images import Images, channel_statistics
from odevit.data.loading import load_data


def test_channel_statistics_equal_numpy() -> None:
    data = load_data()
    assert isinstance(data.train, Images)
    reference = data.train.pixels.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(data.mean, reference.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(data.std, reference.std((0, 2, 3)), rtol=1e-12)


def test_channel_statistics_do_not_depend_on_chunk() -> None:
    pixels = torch.randint(0, 256, (100, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = Images(pixels, torch.zeros(100, dtype=torch.int64))
    assert channel_statistics(images, chunk=7) == channel_statistics(images, chunk=1000)


def test_channel_statistics_of_a_constant_channel_have_a_positive_std() -> None:
    images = Images(torch.full((4, 1, 2, 2), 51, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((0.2,))
    assert std == (1 / 255,)


def test_channel_statistics_of_a_small_stream_use_all_images(
    class_folders: Callable[..., Path], parquet_folder: Callable[..., Path]
) -> None:
    for folder in (class_folders(), parquet_folder()):
        resident, stream = load_data(folder), load_data(folder, resident_limit_gb=0)
        assert stream.mean == pytest.approx(resident.mean, rel=1e-12)
        assert stream.std == pytest.approx(resident.std, rel=1e-12)


def test_load_data_caches_statistics_and_replaces_a_damaged_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_data("digits", cache=tmp_path)
    monkeypatch.setattr("odevit.data.loading.channel_statistics", lambda images: pytest.fail("measured a second time"))
    again = load_data("digits", cache=tmp_path)
    assert (again.mean, again.std) == (first.mean, first.std)
    monkeypatch.undo()
    other = load_data("digits", cache=tmp_path, split_seed=1)
    assert other.mean != first.mean, "another split is another measurement"
    for file in tmp_path.glob("*statistics*"):
        file.write_bytes(b"{")
    assert load_data("digits", cache=tmp_path).mean == first.mean
