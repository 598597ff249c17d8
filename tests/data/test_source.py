"""find_source: the same records from every source, without copies or network."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from odevit.data.images import Images
from odevit.data.loading import load_data
from odevit.data.source import find_source

from .conftest import encoded, picture

Maker = Callable[..., Path]


def write_parquet(folder: Path, columns: dict[str, pa.Array], label: dict[str, object] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    features = {"image": {"_type": "Image"}} | ({} if label is None else {"label": label})
    note = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pq.write_table(pa.table(columns).replace_schema_metadata(note), folder / "train-00000-of-00001.parquet")
    return folder


def images_of(count: int) -> pa.Array:
    return pa.array([{"bytes": encoded(number), "path": None} for number in range(count)])


def test_load_data_gives_the_same_for_class_folders_parquet_and_hub(
    class_folders: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = class_folders()
    hub = datasets.DatasetDict()
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    (tmp_path / "parquet").mkdir()
    for part in ("train", "test"):
        files = sorted((folder / part).rglob("*.png"))
        rows = {
            "image": [{"bytes": file.read_bytes(), "path": None} for file in files],
            "label": [["cat", "dog"].index(file.parent.name) for file in files],
        }
        hub[part] = datasets.Dataset.from_dict(rows, features=features)
        hub[part].to_parquet(tmp_path / "parquet" / f"{part}-00000-of-00001.parquet")
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration: hub)
    expected = load_data(folder)
    for other in (load_data(tmp_path / "parquet"), load_data("me/pets")):
        assert (other.classes, other.mean, other.std) == (expected.classes, expected.mean, expected.std)
        for part in ("train", "validation", "test"):
            ours, theirs = getattr(expected, part), getattr(other, part)
            assert torch.equal(ours.pixels, theirs.pixels)
            assert torch.equal(ours.labels, theirs.labels)


def test_load_data_imports_no_datasets_for_digits_and_opens_no_socket_for_folders(
    class_folders: Maker, parquet_folder: Maker
) -> None:
    """In a process of its own, which has imported nothing yet."""
    folders = [str(class_folders()), str(parquet_folder())]
    home = Path(folders[0]).parent / "home"
    home.mkdir()
    code = f"""
import socket, sys
def refuse(*_, **__): raise RuntimeError("a socket was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from odevit.data import load_data
load_data()
assert "datasets" not in sys.modules
for folder in {folders!r}:
    for limit in (4, 0):
        load_data(folder, resident_limit_gb=limit)
"""
    environment = {"HOME": str(home), "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path for path in home.rglob("*") if path.is_file() and "huggingface" in str(path)] == []


def test_load_data_sees_a_changed_file(class_folders: Maker, tmp_path: Path) -> None:
    folder = class_folders()
    load_data(folder, validation=0)
    picture(777).save(folder / "train" / "cat" / "000.png")
    changed = load_data(folder, validation=0).train
    parquet = write_parquet(tmp_path / "hubset", {"image": images_of(6), "label": pa.array([0, 1] * 3)})
    load_data(parquet)
    write_parquet(parquet, {"image": images_of(8), "label": pa.array([1, 0] * 4)})
    assert isinstance(changed, Images)
    np.testing.assert_array_equal(changed.pixels[0].numpy(), np.asarray(picture(777)).transpose(2, 0, 1))
    assert find_source(parquet).splits["train"].labels.tolist() == [1, 0] * 4


def test_find_source_refuses_columns_for_class_folders(class_folders: Maker) -> None:
    with pytest.raises(ValueError, match=r"class folders, which have no columns; leave out data\.label_column=kind"):
        find_source(class_folders(), label_column="kind")


def test_path_records_can_be_pickled(class_folders: Maker) -> None:
    records = find_source(class_folders()).splits["train"]
    name = records.name(3)
    copy = pickle.loads(pickle.dumps(records))
    assert copy.read(3) == records.read(3) == Path(name)
    assert records.blocks is None


@pytest.mark.parametrize("integer", [pa.int8(), pa.int32(), pa.uint16()])
def test_find_source_keeps_class_names_for_int32_labels(tmp_path: Path, integer: pa.DataType) -> None:
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    columns = {"image": images_of(6), "label": pa.array([0, 1] * 3, integer)}
    assert load_data(write_parquet(tmp_path / "set", columns, label)).classes == ("cat", "dog")


def test_find_source_numbers_classes_with_incomplete_metadata(tmp_path: Path) -> None:
    columns = {"image": images_of(6), "label": pa.array([0, 1] * 3)}
    assert load_data(write_parquet(tmp_path / "set", columns, {"_type": "ClassLabel"})).classes == ("0", "1")


@pytest.mark.parametrize("kind", ["binary", "path first", "files beside"])
def test_load_data_reads_images_as_bytes_paths_and_binary(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(6):
        picture(number).save(folder / f"{number}.png")
    images = {
        "binary": pa.array([encoded(number) for number in range(6)]),
        "path first": pa.array([{"path": f"{number}", "bytes": encoded(number)} for number in range(6)]),
        "files beside": pa.array([{"bytes": None, "path": f"{number}.png"} for number in range(6)]),
    }[kind]
    if kind == "files beside":
        images = images.cast(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    records = find_source(write_parquet(folder, {"image": images, "label": pa.array([0, 1] * 3)})).splits["train"]
    data = records.read(4)
    assert data == (folder / "4.png" if kind == "files beside" else encoded(4))


def test_find_source_names_rows_and_columns_without_images(tmp_path: Path) -> None:
    images = images_of(6).to_pylist()
    images[2] = None
    images[3] = {"bytes": None, "path": None}
    folder = write_parquet(tmp_path / "set", {"image": pa.array(images), "label": pa.array([0, 1] * 3)})
    with pytest.raises(ValueError, match="2 images cannot be read") as caught:
        load_data(folder)
    assert "row 2 of" in str(caught.value)
    assert "train-00000-of-00001.parquet holds no image in column 'image'" in str(caught.value)
    with pytest.raises(ValueError, match=r"image_column='label' of .* holds int64; expected images"):
        load_data(folder, image_column="label")


def test_load_data_from_the_hub_counts_missing_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"image": [Image.new("RGB", (4, 4))] * 4, "label": [0, None, 1, 0]}
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    hub = datasets.DatasetDict(train=datasets.Dataset.from_dict(rows, features=features))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration: hub)
    with pytest.raises(ValueError, match="1 rows of split 'train' have no 'label'"):
        load_data("me/pets")
