"""An upload becomes a small RGB image, or an error that names the file."""

import base64

import numpy as np
import pytest
from PIL import Image

from odevit.explorer.uploads import MAX_BYTES, MAX_SIDE, decode_upload, from_data_url, to_data_url
from tests.explorer.strange_files import STRANGE


@pytest.mark.parametrize("name", STRANGE)
def test_decode_upload_returns_a_small_rgb_image_or_raises(name):
    content, readable = STRANGE[name]
    if not readable:
        with pytest.raises(ValueError, match=name) as caught:
            decode_upload(content, name)
        assert "expected" in str(caught.value)
        return
    picture = decode_upload(content, name)
    assert picture.mode == "RGB"
    assert min(picture.size) <= MAX_SIDE


def test_decode_upload_returns_the_first_frame_of_an_animation():
    assert decode_upload(STRANGE["animated.gif"][0]).getpixel((20, 20)) == (255, 0, 0)


def test_decode_upload_keeps_the_colours_of_cmyk():
    red, green, blue = decode_upload(STRANGE["cmyk.jpg"][0]).getpixel((20, 20))
    assert red > 200
    assert max(green, blue) < 100


def test_decode_upload_refuses_too_many_bytes():
    with pytest.raises(ValueError, match="MiB; expected at most 64"):
        decode_upload(bytes(MAX_BYTES + 1), "film.mov")


def test_data_urls_are_lossless():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 20, 3), dtype=np.uint8))
    assert np.array_equal(np.asarray(from_data_url(to_data_url(picture))), np.asarray(picture))


@pytest.mark.parametrize(
    "url",
    ["", "/etc/passwd", "file:///etc/passwd", "http://example.com/cat.png", "data:image/png;base64,???", "data:,hello"],
)
def test_from_data_url_refuses_other_urls(url):
    with pytest.raises(ValueError, match=r"data: URL|cannot be read"):
        from_data_url(url)


def test_decode_upload_ignores_the_declared_type():
    url = "data:image/jpeg;base64," + base64.b64encode(STRANGE["drawing.svg"][0]).decode()
    with pytest.raises(ValueError, match="cannot be read as an image"):
        from_data_url(url)
