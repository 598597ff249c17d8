"""Folders of class folders, good and bad."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from odevit.data.images import Images
from odevit.data.loading import load_data
from odevit.errors import OdeVitWarning

from .conftest import picture

Maker = Callable[..., Path]


def test_load_data_takes_classes_and_splits_from_folders(class_folders: Maker) -> None:
    data = load_data(class_folders(("train", "test")), validation=0.2)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 20)
    assert torch.bincount(data.validation.labels).tolist() == [2, 2]
    assert data.name == "pets"


def test_load_data_uses_val_as_test_without_a_test_folder(class_folders: Maker) -> None:
    data = load_data(class_folders(("train", "val")), validation=0.2)
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 20)


def test_load_data_refuses_two_folders_for_one_split(class_folders: Maker) -> None:
    with pytest.raises(ValueError, match=r"two validation splits, one named 'validation'"):
        load_data(class_folders(("train", "val", "validation")))


def test_load_data_uses_val_beside_test_as_validation(class_folders: Maker) -> None:
    data = load_data(class_folders(("train", "val", "test"), each=5))
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 10, 10)


def test_load_data_takes_test_from_train_and_logs_it(class_folders: Maker, caplog: pytest.LogCaptureFixture) -> None:
    folder = class_folders(("",))
    with caplog.at_level(logging.INFO, logger="odevit.data"):
        data = load_data(folder, validation=0.25)
    assert (len(data.train), len(data.validation), len(data.test)) == (12, 4, 4)
    assert "4 of 20 images are used as such" in caplog.text
    again = load_data(folder, validation=0.0, split_seed=9)
    assert isinstance(data.test, Images)
    assert isinstance(again.test, Images)
    assert torch.equal(data.test.pixels, again.test.pixels)
    assert len(again.validation) == 0


def test_load_data_refuses_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match=r"no images were found in it; expected train/<class>/\*\.png"):
        load_data(tmp_path)


def test_load_data_refuses_images_without_a_class_folder(tmp_path: Path) -> None:
    picture(0).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="1 images lie in it directly, without a class"):
        load_data(tmp_path)


def test_load_data_refuses_a_single_class(class_folders: Maker) -> None:
    with pytest.raises(ValueError, match=r"only one class \('cat'\); expected two or more"):
        load_data(class_folders(classes=("cat",)))


def test_load_data_names_empty_class_folders(class_folders: Maker) -> None:
    folder = class_folders()
    (folder / "train" / "eel").mkdir()
    with pytest.raises(ValueError, match=r"class folders hold no images: .*eel"):
        load_data(folder)


def test_load_data_refuses_test_classes_missing_in_train(class_folders: Maker) -> None:
    folder = class_folders()
    (folder / "test" / "eel").mkdir()
    picture(0).save(folder / "test" / "eel" / "a.png")
    with pytest.raises(ValueError, match=r"classes the training split lacks: eel; it has cat, dog"):
        load_data(folder)


def test_load_data_refuses_an_empty_test_folder(class_folders: Maker) -> None:
    folder = class_folders(("train",))
    (folder / "test").mkdir()
    with pytest.raises(ValueError, match="the test split of pets is empty"):
        load_data(folder)


def test_load_data_skips_unreadable_images_only_on_request(class_folders: Maker) -> None:
    folder = class_folders()
    for number in range(6):
        (folder / "train" / "cat" / f"{number:03d}.png").write_bytes(b"not an image")
        whole = (folder / "test" / "dog" / f"{number:03d}.png").read_bytes()
        (folder / "test" / "dog" / f"{number:03d}.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"12 images cannot be read") as caught:
        load_data(folder)
    message = str(caught.value)
    assert str(folder / "train" / "cat" / "003.png") in message
    assert str(folder / "test" / "dog" / "003.png") in message
    assert "... and 2 more" in message
    assert "skip_unreadable=True" in message
    with pytest.warns(OdeVitWarning, match="12 images cannot be read"):
        data = load_data(folder, skip_unreadable=True, validation=0)
    assert torch.bincount(data.train.labels).tolist() == [4, 10]
    assert torch.bincount(data.test.labels).tolist() == [10, 4]


def test_load_data_requires_image_size_for_mixed_sizes(class_folders: Maker) -> None:
    folder = class_folders()
    picture(0, (9, 12)).save(folder / "train" / "cat" / "003.png")
    with pytest.raises(ValueError, match=r"different sizes \(6x6, 12x9\); set image_size="):
        load_data(folder)
    assert load_data(folder, image_size=8).image_size == 8


def test_load_data_finds_a_different_size_beyond_the_first_images(class_folders: Maker) -> None:
    folder = class_folders(each=100)  # more than are tried first
    picture(0, (7, 7)).save(folder / "train" / "cat" / "001.png")
    with pytest.raises(ValueError, match=r"001\.png: images have different sizes: 6x6 and 7x7"):
        load_data(folder)


def test_load_data_ignores_other_files(class_folders: Maker) -> None:
    folder = class_folders()
    (folder / "train" / "cat" / "notes.txt").write_text("soft")
    Image.new("L", (6, 6)).save(folder / "train" / "cat" / "grey.BMP", "BMP")
    assert len(load_data(folder, validation=0).train) == 21
