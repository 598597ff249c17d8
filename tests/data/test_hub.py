"""Data sets from the hub, with a fake `load_dataset`."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest

from odevit.data.images import Images
from odevit.data.loading import load_data

from .conftest import picture


@pytest.fixture
def hub_access(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `datasets.load_dataset` will answer, by id."""
    known: dict[str, Any] = {}

    def load_dataset(name: str, configuration: str | None = None) -> Any:
        key = name if configuration is None else f"{name}:{configuration}"
        if key not in known:
            raise FileNotFoundError(f"Dataset '{key}' doesn't exist on the Hub")
        return known[key]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return known


def split(labels: list[Any], label: Any, first: int = 0) -> Any:
    features = datasets.Features({"image": datasets.Image(), "label": label})
    images = [picture(first + n) for n in range(len(labels))]
    return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)


def test_load_data_from_the_hub(hub_access: dict[str, Any]) -> None:
    names = datasets.ClassLabel(names=["cat", "dog"])
    hub_access["me/pets"] = datasets.DatasetDict(train=split([0, 1] * 5, names), validation=split([1, 0], names, 50))
    data = load_data("me/pets", validation=0)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (10, 2)
    assert isinstance(data.train, Images)
    np.testing.assert_array_equal(data.train.pixels[3].numpy(), np.asarray(picture(3)).transpose(2, 0, 1))


def test_load_data_from_the_hub_with_a_configuration(hub_access: dict[str, Any]) -> None:
    hub_access["me/pets:small"] = datasets.DatasetDict(train=split([0, 1] * 5, datasets.Value("int64")))
    data = load_data("me/pets:small")
    assert data.classes == ("0", "1")


def test_load_data_refuses_string_labels(hub_access: dict[str, Any]) -> None:
    hub_access["me/pets"] = datasets.DatasetDict(train=split(["a", "b"], datasets.Value("string")))
    with pytest.raises(ValueError, match=r"holds string; expected integers.*class_encode_column\('label'\)"):
        load_data("me/pets")


def test_load_data_lists_possible_values_for_an_unknown_id(hub_access: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"'me/fish' could not be fetched.*data= may be a name \('digits'\)"):
        load_data("me/fish")


def test_load_data_suggests_the_nearest_name(hub_access: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'digits'\?"):
        load_data("digit")
