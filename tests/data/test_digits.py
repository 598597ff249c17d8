"""digits: the levels of scikit-learn, scaled, in three equal channels."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from odevit.data.images import Images
from odevit.data.loading import load_data


def test_load_digits_has_every_image_once() -> None:
    data = load_data(validation=0.1)
    parts = [data.train, data.validation, data.test]
    assert all(isinstance(part, Images) for part in parts)
    assert [len(part) for part in parts] == [1295, 143, 359]
    pixels = torch.cat([part.pixels for part in parts if isinstance(part, Images)])
    levels = torch.from_numpy(load_digits().images)
    assert torch.equal(pixels[:, 0], pixels[:, 1])
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    ours = sorted(map(tuple, (pixels[:, 0].double() * 16 / 255).round().flatten(1).tolist()))
    assert ours == sorted(map(tuple, levels.flatten(1).tolist()))


def test_test_split_does_not_depend_on_validation() -> None:
    a, b = load_data(split_seed=0), load_data(split_seed=1, validation=0.3)
    assert isinstance(a.test, Images)
    assert isinstance(b.test, Images)
    assert torch.equal(a.test.pixels, b.test.pixels)
    assert not torch.equal(a.validation.labels, b.validation.labels)


def test_load_digits_with_image_size() -> None:
    data = load_data(image_size=16)
    assert (data.image_size, data.channels, data.num_classes) == (16, 3, 10)
