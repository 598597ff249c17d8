"""Decoded pixels: exact, upright, square, 8 bits."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from odevit.data import decode
from odevit.data.decode import Decoder, decode_records, infer_image_size
from odevit.data.records import UNREADABLE, ArrayRecords, SizeError

from .conftest import encoded, picture


def test_decoder_keeps_png_pixels_exactly() -> None:
    pixels = Decoder(6, resize=False)(encoded(3))
    np.testing.assert_array_equal(pixels, np.asarray(picture(3)).transpose(2, 0, 1))


def test_decoder_repeats_grey_in_three_channels() -> None:
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4)
    as_rgb = Decoder(4, resize=False)(grey)
    assert as_rgb.shape == (3, 4, 4)
    np.testing.assert_array_equal(as_rgb[0], grey)
    np.testing.assert_array_equal(as_rgb[2], grey)


def test_decoder_resizes_the_central_square() -> None:
    """The shortest side is resized, then the centre taken, as transformers and torchvision do; edges stay apart."""
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200  # the centre is bright, the sides are black
    square = Decoder(5)(wide)
    assert square.shape == (3, 5, 5)
    assert (square[..., 1:-1] > 190).all(), "all of the centre"
    assert square.min() > 150, "of the sides no more than a filter's width"
    upright = np.ascontiguousarray(wide.transpose(1, 0, 2))
    np.testing.assert_array_equal(Decoder(5)(upright), square.transpose(0, 2, 1))


def test_decoder_antialiases_when_shrinking() -> None:
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    small = Decoder(8)(checks.astype(np.uint8))
    assert np.abs(small.astype(int) - 128).max() < 12


def test_decoder_applies_exif_orientation() -> None:
    tall = Image.fromarray(np.repeat(np.arange(8, dtype=np.uint8)[:, None], 4, 1) * 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side: turn clockwise
    file = BytesIO()
    tall.save(file, "PNG", exif=exif)
    with pytest.raises(SizeError, match="8x4"):
        Decoder(9, resize=False)(file.getvalue())


def test_decoder_refuses_sixteen_bits() -> None:
    file = BytesIO()
    Image.fromarray(np.full((4, 4), 40000, dtype=np.uint16)).save(file, "PNG")
    with pytest.raises(UNREADABLE, match="not 8 bits"):
        Decoder(4, resize=False)(file.getvalue())


@pytest.fixture(params=["here", "in processes"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded by this process, or by others, as many pictures would be."""
    if request.param == "in processes":
        monkeypatch.setattr(decode, "_MIN_FOR_PROCESSES", 1)
        monkeypatch.setattr(decode, "_TASK", 2)
        monkeypatch.setattr(decode.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


@pytest.mark.usefixtures("many")
def test_decode_records_names_an_image_of_another_size() -> None:
    class Odd(ArrayRecords):
        def read(self, index: int) -> np.ndarray:
            return np.zeros((6, 6 + (index == 3)), dtype=np.uint8)

    records = Odd(np.zeros((5, 6, 6)), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"image 3: images have different sizes: 6x6 and 7x6"):
        decode_records(records, Decoder(6, resize=False), title="t")


@pytest.mark.usefixtures("many")
def test_decode_records_leaves_out_unreadable_images_and_names_them() -> None:
    class Broken(ArrayRecords):
        def read(self, index: int) -> bytes:
            return encoded(index) if index != 1 else encoded(index)[:60]

    images, complaints = decode_records(
        Broken(np.zeros((3, 6, 6)), torch.tensor([5, 6, 7])), Decoder(6, resize=False), title="t"
    )
    assert images.labels.tolist() == [5, 7]
    np.testing.assert_array_equal(images.pixels[1].numpy(), np.asarray(picture(2)).transpose(2, 0, 1))
    assert len(complaints) == 1
    assert complaints[0].startswith("image 1:")


def test_infer_image_size_says_what_to_type() -> None:
    square = ArrayRecords(np.zeros((3, 6, 6), dtype=np.uint8), torch.zeros(3, dtype=torch.int64))
    flat = ArrayRecords(np.zeros((3, 4, 6), dtype=np.uint8), torch.zeros(3, dtype=torch.int64))
    assert infer_image_size([square, square.subset(torch.tensor([1]))]) == 6
    with pytest.raises(ValueError, match=r"different sizes \(6x4, 6x6\); set image_size="):
        infer_image_size([square, flat])
    with pytest.raises(ValueError, match="not square; set image_size=4"):
        infer_image_size([flat])
