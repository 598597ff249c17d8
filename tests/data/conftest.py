"""Tiny data sets on disk, and the real ones where they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def picture(value: int, size: tuple[int, int] = (6, 6)) -> Image.Image:
    """A picture whose pixels are all different and depend on `value`."""
    height, width = size
    noise = np.random.default_rng(value).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def encoded(value: int, size: tuple[int, int] = (6, 6)) -> bytes:
    file = BytesIO()
    picture(value, size).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def class_folders(tmp_path: Path) -> Callable[..., Path]:
    """Makes `<part>/<class>/<n>.png`; part "" lays the class folders at the root."""

    def make(parts: Sequence[str] = ("train", "test"), classes: Sequence[str] = ("cat", "dog"), each: int = 10) -> Path:
        folder = tmp_path / "pets"
        value = 0
        for part in parts:
            for name in classes:
                (folder / part / name).mkdir(parents=True, exist_ok=True)
                for number in range(each):
                    picture(value).save(folder / part / name / f"{number:03d}.png")
                    value += 1
        return folder

    return make


@pytest.fixture
def parquet_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder in hub layout: two training files, one test file, several row groups each."""

    def make(
        labels: Sequence[object] = (0, 1, 2) * 4,
        test_labels: Sequence[object] = (0, 1, 2),
        *,
        names: Sequence[str] | None = ("a", "b", "c"),
        subfolder: str = "data",
        extra: dict[str, Sequence[object]] | None = None,
    ) -> Path:
        folder = tmp_path / "hubset"
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
        features: dict[str, object] = {"img": {"_type": "Image"}}
        if names is not None:
            features["label"] = {"names": list(names), "_type": "ClassLabel"}
        note = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}

        def write(name: str, first: int, some: Sequence[object]) -> None:
            images = [{"bytes": encoded(first + n), "path": f"{n}.png"} for n in range(len(some))]
            image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            columns = {"img": pa.array(images, image_type), "label": pa.array(some)}
            for key, values in (extra or {}).items():
                columns[key] = pa.array((list(values) * len(some))[: len(some)])
            table = pa.table(columns)
            metadata = note if names is not None else None
            pq.write_table(table.replace_schema_metadata(metadata), folder / subfolder / name, row_group_size=4)

        half = len(labels) // 2
        write("train-00000-of-00002.parquet", 0, labels[:half])
        write("train-00001-of-00002.parquet", half, labels[half:])
        write("test-00000-of-00001.parquet", len(labels), test_labels)
        return folder

    return make


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets: ODEVIT_DATA, or shared/data beside the repository."""
    asked = os.environ.get("ODEVIT_DATA")
    folder = Path(asked) if asked else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not (folder / "cifar10").is_dir():
        pytest.skip(f"no cifar10 in {folder}; set ODEVIT_DATA to a folder that holds cifar10/ and cifar100/")
    return folder
