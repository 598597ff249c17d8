"""Folders of parquet files in hub layout."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from odevit.data.decode import Decoder, decode_records
from odevit.data.images import Images
from odevit.data.loading import load_data
from odevit.data.source import find_source

from .conftest import picture

Maker = Callable[..., Path]


@pytest.mark.parametrize("subfolder", ["data", "."])
def test_parquet_rows_and_class_names_keep_their_order(parquet_folder: Maker, subfolder: str) -> None:
    data = load_data(parquet_folder(subfolder=subfolder), validation=0)
    assert data.classes == ("a", "b", "c")
    assert isinstance(data.train, Images)
    assert data.train.labels.tolist() == [0, 1, 2] * 4
    for row in range(12):
        np.testing.assert_array_equal(data.train.pixels[row].numpy(), np.asarray(picture(row)).transpose(2, 0, 1))
    assert len(data.test) == 3


def test_parquet_classes_without_names_are_numbered(parquet_folder: Maker) -> None:
    assert load_data(parquet_folder(names=None)).classes == ("0", "1", "2")


def test_parquet_columns_can_be_chosen(parquet_folder: Maker) -> None:
    folder = parquet_folder(extra={"coarse": [0, 0, 1], "note": ["x"]})
    assert load_data(folder, label_column="coarse", validation=0).train.labels.tolist() == [0, 0, 1] * 4
    with pytest.raises(ValueError, match=r"'kind' is not a column.*'img' \(image\), 'label' \(class\), 'coarse'"):
        load_data(folder, label_column="kind")
    with pytest.raises(ValueError, match=r"image_column='photo' is not a column.*'img' \(image\)"):
        load_data(folder, image_column="photo")


@pytest.mark.parametrize(("values", "kind"), [(("cat", "dog"), "string"), ((0.0, 1.0), "float64")])
def test_parquet_refuses_labels_of_the_wrong_type(parquet_folder: Maker, values: tuple[object, ...], kind: str) -> None:
    folder = parquet_folder(values * 6, values, names=None)
    with pytest.raises(ValueError, match=f"holds {kind}; expected integers"):
        load_data(folder)


def test_parquet_refuses_labels_outside_the_classes(parquet_folder: Maker) -> None:
    folder = parquet_folder([0, 1, 2, 7] * 3, [0, 1])
    with pytest.raises(ValueError, match=r"3 labels of the train split of hubset are outside 0\.\.2, the first is 7"):
        load_data(folder)


def test_parquet_counts_missing_labels(parquet_folder: Maker) -> None:
    with pytest.raises(ValueError, match=r"1 rows of .* have no 'label'"):
        load_data(parquet_folder([0, None, 1, 2, 0, 1]))


def test_parquet_test_split_without_labels_is_ignored(parquet_folder: Maker) -> None:
    data = load_data(parquet_folder([0, 1, 2] * 10, [-1, -1, -1]), validation=0)
    assert (len(data.train), len(data.test)) == (24, 6)


def test_parquet_refuses_an_empty_test_split(parquet_folder: Maker) -> None:
    folder = parquet_folder()
    file = folder / "data" / "test-00000-of-00001.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.Table.from_batches([], schema=table.schema), file)
    with pytest.raises(ValueError, match="the test split of hubset is empty"):
        load_data(folder)


def test_parquet_names_a_damaged_file(parquet_folder: Maker) -> None:
    folder = parquet_folder()
    (folder / "data" / "train-00000-of-00002.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match=r"train-00000-of-00002\.parquet is not a readable parquet file"):
        load_data(folder)


def test_parquet_records_can_be_pickled_and_have_blocks(parquet_folder: Maker) -> None:
    records = find_source(parquet_folder()).splits["train"]
    assert records.blocks is not None
    assert records.blocks.tolist() == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 2
    copy = pickle.loads(pickle.dumps(records))
    assert copy.read(7) == records.read(7)
    assert records.name(7).startswith("row 1 of ")
    assert records.name(7).endswith("train-00001-of-00002.parquet")


@pytest.mark.data
@pytest.mark.parametrize(("name", "classes", "first"), [("cifar10", 10, "airplane"), ("cifar100", 100, "apple")])
def test_recorded_cifar10_test_split(real_data: Path, name: str, classes: int, first: str) -> None:
    source = find_source(real_data / name)
    assert len(source.classes) == classes
    assert source.classes[0] == first
    assert len(source.splits["train"]) == 50_000
    images, complaints = decode_records(source.splits["test"], Decoder(32, resize=False), title=name)
    assert complaints == []
    assert images.pixels.shape == (10_000, 3, 32, 32)
    assert torch.bincount(images.labels).tolist() == [10_000 // classes] * classes


@pytest.mark.data
def test_recorded_cifar100_coarse_labels(real_data: Path) -> None:
    source = find_source(real_data / "cifar100", label_column="coarse_label")
    assert len(source.classes) == 20
