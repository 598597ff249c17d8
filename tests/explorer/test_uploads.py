"""Whatever is dropped on the page becomes a small picture or a sentence."""

import base64

import numpy as np
import pytest
from PIL import Image

from odevit.explorer.uploads import MAX_BYTES, MAX_SIDE, decode_upload, from_data_url, to_data_url
from tests.explorer.strange_files import STRANGE


@pytest.mark.parametrize("name", STRANGE)
def test_a_picture_or_a_sentence(name):
    content, readable = STRANGE[name]
    if not readable:
        with pytest.raises(ValueError, match=name) as caught:
            decode_upload(content, name)
        assert "expected" in str(caught.value)
        return
    picture = decode_upload(content, name)
    assert picture.mode == "RGB"
    assert min(picture.size) <= MAX_SIDE


def test_an_animation_is_its_first_frame():
    assert decode_upload(STRANGE["animated.gif"][0]).getpixel((20, 20)) == (255, 0, 0)


def test_cmyk_keeps_its_colours():
    red, green, blue = decode_upload(STRANGE["cmyk.jpg"][0]).getpixel((20, 20))
    assert red > 200
    assert max(green, blue) < 100


def test_too_many_bytes_are_refused_unread():
    with pytest.raises(ValueError, match="MiB; expected at most 64"):
        decode_upload(bytes(MAX_BYTES + 1), "film.mov")


def test_a_picture_goes_to_the_page_and_back_without_loss():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 20, 3), dtype=np.uint8))
    assert np.array_equal(np.asarray(from_data_url(to_data_url(picture))), np.asarray(picture))


@pytest.mark.parametrize(
    "url",
    ["", "/etc/passwd", "file:///etc/passwd", "http://example.com/cat.png", "data:image/png;base64,???", "data:,hello"],
)
def test_only_data_addresses_are_followed(url):
    with pytest.raises(ValueError, match=r"data: address|cannot be read"):
        from_data_url(url)


def test_a_file_that_lies_about_its_type_is_judged_by_its_content():
    url = "data:image/jpeg;base64," + base64.b64encode(STRANGE["drawing.svg"][0]).decode()
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        from_data_url(url)
