"""Unusual uploads: name -> (bytes, whether they are an image)."""

from io import BytesIO

from PIL import Image


def saved(picture, kind, **options):
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def animated():
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=100)


STRANGE = {
    "text.jpg": (b"this is no picture\n", False),
    "empty.png": (b"", False),
    "drawing.svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', False),
    "cut.png": (saved(Image.effect_noise((64, 64), 90), "PNG")[:900], False),
    "page.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n", False),
    "line.png": (saved(Image.new("RGB", (1000, 2)), "PNG"), False),
    "huge.png": (saved(Image.new("1", (12_000, 9_000)), "PNG"), False),
    "animated.gif": (animated(), True),
    "cmyk.jpg": (saved(Image.new("CMYK", (50, 40), (0, 200, 200, 0)), "JPEG"), True),
    "dot.png": (saved(Image.new("RGB", (1, 1), "red"), "PNG"), True),
    "sixty.jpg": (saved(Image.new("L", (10_000, 6_000), 90), "JPEG"), True),
}
