"""load_data: arguments, cache and streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import ViTImageProcessorPil

from odevit.data import loading
from odevit.data.batches import make_batches
from odevit.data.images import Images, ImageStream
from odevit.data.loading import load_data
from odevit.errors import ConfigError, OdeVitWarning
from odevit.hf.processor import square_processor
from tests.tiny import tiny_model

Maker = Callable[..., Path]


@pytest.mark.parametrize("where", ["./nowhere", "/no/such/folder", "~/nowhere-at-all"])
def test_load_data_lists_possible_values_for_a_missing_folder(where: str) -> None:
    with pytest.raises(ValueError, match=r"does not exist\. data= may be a name \('digits'\), a folder with files"):
        load_data(where)


def test_load_data_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(ValueError, match="is a file, not a folder"):
        load_data(tmp_path / "x.zip")


def test_load_data_reports_all_invalid_arguments_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_data(image_size=0, validation=1.0, resident_limit_gb=-1)
    assert len(caught.value.problems) == 3


def test_load_data_reads_the_cache_the_second_time(
    class_folders: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = class_folders(), tmp_path / "cache"
    first = load_data(folder, cache=cache)
    assert [file.suffix for file in cache.iterdir()] == [".safetensors"] * 2  # pixels and their statistics

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("decoded again")

    monkeypatch.setattr(loading, "decode_records", refuse)
    second = load_data(folder, cache=cache, validation=0.3)
    assert isinstance(first.test, Images)
    assert isinstance(second.test, Images)
    assert torch.equal(first.test.pixels, second.test.pixels)
    (folder / "train" / "cat" / "000.png").touch()  # a changed file is a changed data set
    with pytest.raises(RuntimeError, match="decoded again"):
        load_data(folder, cache=cache)


def test_load_data_has_a_cache_per_image_size(class_folders: Maker, tmp_path: Path) -> None:
    folder, cache = class_folders(), tmp_path / "cache"
    assert load_data(folder, cache=cache).image_size == 6
    assert load_data(folder, cache=cache, image_size=4).image_size == 4


def test_load_data_replaces_a_damaged_cache(class_folders: Maker, tmp_path: Path) -> None:
    folder, cache = class_folders(), tmp_path / "cache"
    first = load_data(folder, cache=cache)
    file = next(cache.iterdir())
    file.write_bytes(b"half a file")
    second = load_data(folder, cache=cache)
    assert second.mean == first.mean
    assert file.stat().st_size > 100


def test_load_data_streams_large_data_with_the_same_content(class_folders: Maker, parquet_folder: Maker) -> None:
    for folder in (class_folders(), parquet_folder()):
        resident, stream = load_data(folder), load_data(folder, resident_limit_gb=1e-9)
        for part in ("train", "validation", "test"):
            held, lazy = getattr(resident, part), getattr(stream, part)
            assert isinstance(lazy, ImageStream)
            assert torch.equal(held.labels, lazy.labels)
            assert torch.equal(held.pixels, torch.stack([lazy[i][0] for i in range(len(lazy))]))


def test_streams_name_unreadable_images_and_skip_them_on_request(class_folders: Maker) -> None:
    folder = class_folders()
    (folder / "test" / "cat" / "000.png").write_bytes(b"no")
    strict = load_data(folder, resident_limit_gb=0).test
    with pytest.raises(ValueError, match=r"cat/000\.png cannot be read .* set skip_unreadable=True"):
        strict[0]
    for workers in (0, 1):  # in another process, too, it is one sentence
        with pytest.raises(ValueError, match=r"\A\S*cat/000\.png cannot be read .*data.skip_unreadable=true\)\.\Z"):
            list(make_batches(strict, 4, mean=[0.5] * 3, std=[0.5] * 3, num_classes=2, workers=workers))
    lenient = load_data(folder, resident_limit_gb=0, skip_unreadable=True).test
    assert isinstance(lenient, ImageStream)
    with pytest.warns(OdeVitWarning, match="the next image takes its place"):
        pixels, label = lenient[0]
    assert torch.equal(pixels, lenient[1][0])
    assert label == 0


def test_load_data_shares_the_cache_between_image_size_and_processor(tmp_path: Path, class_folders: Maker) -> None:
    folder, cache = class_folders(), tmp_path / "cache"
    first = load_data(folder, image_size=16, cache=cache)
    stored = sorted(cache.iterdir())
    again = load_data(folder, processor=tiny_model().image_processor, cache=cache)
    assert sorted(cache.iterdir()) == stored
    assert torch.equal(first.test.pixels, again.test.pixels)
    other = load_data(folder, processor=ViTImageProcessorPil(size={"height": 16, "width": 16}, resample=0), cache=cache)
    assert len(list(cache.iterdir())) > len(stored)
    assert not torch.equal(first.test.pixels, other.test.pixels)
    with pytest.raises(ValueError, match="image_size=8 and processor=; expected one of them"):
        load_data(folder, image_size=8, processor=square_processor(16))


def test_load_data_with_share_takes_that_share_of_every_class() -> None:
    whole, few, again = (load_data("digits", share=share) for share in (1.0, 0.08, 0.08))
    counts, least = torch.bincount(few.train.labels), torch.bincount(whole.train.labels)
    assert torch.equal(counts, (0.08 * least).round().long())
    assert torch.equal(few.train.pixels, again.train.pixels), "the same ones every time"
    assert (few.mean, few.std, few.classes) == (whole.mean, whole.std, whole.classes)
    for part in ("validation", "test"):
        assert torch.equal(getattr(few, part).pixels, getattr(whole, part).pixels)
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match=r"share=\d\.\d; expected a share in \(0, 1\]"):
            load_data("digits", share=share)
