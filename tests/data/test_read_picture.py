"""Image files: EXIF orientation, crop, bits and channels."""

import numpy as np
import pytest
from PIL import Image

from odevit import cli
from odevit.data.decode import read_picture
from tests.tiny import tiny_model

ORIENTATION = 0x0112
LYING = {
    1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip
"""How the pixels lie in a file of each EXIF orientation."""


def upright():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8))


def taken(folder, orientation):
    """The same picture as a camera in that position writes it."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    lying = upright() if LYING[orientation] is None else upright().transpose(LYING[orientation])
    path = folder / f"{orientation}.png"
    lying.save(path, exif=exif)
    return path


@pytest.mark.parametrize("orientation", LYING)
def test_read_picture_applies_every_exif_orientation(orientation, tmp_path):
    assert np.array_equal(np.asarray(read_picture(taken(tmp_path, orientation))), np.asarray(upright()))


def test_predict_is_the_same_for_every_exif_orientation(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    found = cli.predict([taken(tmp_path, each) for each in LYING], model=tmp_path / "model", top=5)
    assert len({each.labels for each in found}) == 1


def test_predict_uses_the_central_square(tmp_path):
    """As training does: what lies beside it, beyond a filter's width, changes nothing."""
    tiny_model().save_pretrained(tmp_path / "model")
    pixels = np.asarray(upright()).copy()
    Image.fromarray(pixels).save(tmp_path / "as it is.png")
    pixels[:, -1:] = 255 - pixels[:, -1:]
    Image.fromarray(pixels).save(tmp_path / "other at its end.png")
    pixels[:, 10] = 255 - pixels[:, 10]
    Image.fromarray(pixels).save(tmp_path / "other at its centre.png")
    names = ("as it is.png", "other at its end.png", "other at its centre.png")
    whole, end, centre = (cli.predict([tmp_path / name], model=tmp_path / "model", top=5)[0] for name in names)
    assert whole.labels == end.labels
    assert whole.labels != centre.labels


def test_decoder_refuses_an_image_of_one_row(tmp_path):
    """Its shortest side at 224 pixels, it would take gigabytes."""
    Image.new("RGB", (1, 300)).save(tmp_path / "line.png")
    with pytest.raises(ValueError, match=r"line\.png' cannot be read as an image: 1x300 pixels are a line"):
        read_picture(tmp_path / "line.png")


def test_predict_refuses_sixteen_bits(tmp_path):
    Image.fromarray(np.full((4, 4), 40000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png' cannot be read as an image: .*not 8 bits"):
        read_picture(tmp_path / "deep.png")


def test_predict_converts_colour_to_grey_for_one_channel(tmp_path):
    tiny_model(num_channels=1, image_mean=[0.5], image_std=[0.5]).save_pretrained(tmp_path / "model")
    upright().save(tmp_path / "colour.png")
    upright().convert("L").save(tmp_path / "grey.png")
    colour, grey = cli.predict([tmp_path / "colour.png", tmp_path / "grey.png"], model=tmp_path / "model", top=5)
    assert colour.labels == grey.labels
