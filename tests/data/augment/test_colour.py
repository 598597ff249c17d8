"""Colour operations against PIL, which defines them, and against their identities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from odevit.data.augment import colour

BYTES = torch.randint(20, 220, (4, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
IMAGES = BYTES.float() / 255


def through_pil(change: Callable[[Image.Image], Image.Image]) -> Tensor:
    done = [np.asarray(change(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in BYTES]
    return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2).float() / 255


BLENDS = {
    "brightness": (colour.brightness, ImageEnhance.Brightness),
    "contrast": (colour.contrast, ImageEnhance.Contrast),
    "saturation": (colour.saturation, ImageEnhance.Color),
    "sharpness": (colour.sharpness, ImageEnhance.Sharpness),
}


@pytest.mark.parametrize("name", BLENDS)
@pytest.mark.parametrize("amount", [0.0, 0.6, 1.0, 1.5])
def test_blends_agree_with_pil(name: str, amount: float) -> None:
    ours, theirs = BLENDS[name]
    expected = through_pil(lambda image: theirs(image).enhance(amount))
    torch.testing.assert_close(ours(IMAGES, torch.full((4,), amount)), expected, atol=2.1 / 255, rtol=0)


@pytest.mark.parametrize("name", BLENDS)
def test_amount_one_is_the_identity(name: str) -> None:
    torch.testing.assert_close(BLENDS[name][0](IMAGES, torch.ones(4)), IMAGES, atol=1e-6, rtol=0)


def test_solarize_and_posterize_agree_with_pil() -> None:
    solarized = colour.solarize(IMAGES, torch.full((4,), 128 / 255))
    torch.testing.assert_close(solarized, through_pil(lambda i: ImageOps.solarize(i, 128)), atol=1e-6, rtol=0)
    posterized = colour.posterize(IMAGES, torch.full((4,), 3.0))
    torch.testing.assert_close(posterized, through_pil(lambda i: ImageOps.posterize(i, 3)), atol=1e-6, rtol=0)


def test_autocontrast_agrees_with_pil_and_spares_flat_channels() -> None:
    torch.testing.assert_close(colour.autocontrast(IMAGES), through_pil(ImageOps.autocontrast), atol=1.1 / 255, rtol=0)
    flat = torch.full((1, 3, 4, 4), 0.3)
    assert torch.equal(colour.autocontrast(flat), flat)


def test_each_sample_has_its_own_amount() -> None:
    amounts = torch.tensor([0.0, 0.5, 1.0, 1.1])
    together = colour.contrast(IMAGES, amounts)
    alone = torch.cat([colour.contrast(IMAGES[n : n + 1], amounts[n : n + 1]) for n in range(4)])
    assert torch.equal(together, alone)


def test_jitter_changes_those_below_the_probability_and_keeps_the_range() -> None:
    u = torch.rand(4, 4, generator=torch.Generator().manual_seed(3))
    changed = colour.colour_jitter(IMAGES, u, 0.5)
    assert torch.equal((changed != IMAGES).flatten(1).any(1), u[0] < 0.5)
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1


def test_one_channel_images_have_no_saturation_to_lose() -> None:
    grey = IMAGES[:, :1]
    torch.testing.assert_close(colour.saturation(grey, torch.zeros(4)), grey)
