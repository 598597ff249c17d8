"""One picture that is not square, in every way a file can hold it."""

import struct
import zlib

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def drawn(width=61, height=40, channels=3, seed=0):
    """Smooth, with an edge, different at every place: a stretched, turned or shifted copy is another picture."""
    y, x = np.mgrid[:height, :width] / max(width, height)
    phases = np.random.default_rng(seed).uniform(0, 6, channels)
    waves = [127 + 100 * np.sin(9 * x + 5 * y * (k + 1) + phase) for k, phase in enumerate(phases)]
    pixels = np.stack(waves, axis=-1).round()
    pixels[height // 3 : height // 2, width // 2 :] = 255
    return Image.fromarray(pixels.astype(np.uint8).squeeze())


def write_pictures(folder):
    """The files, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    drawn(seed=1).save(folder / "colour.png")
    drawn(40, 61, seed=2).save(folder / "tall.jpg", quality=95)
    drawn(seed=3).save(folder / "turned.jpg", quality=95, exif=turned)
    drawn(channels=4, seed=4).save(folder / "alpha.png")
    drawn(channels=1, seed=5).save(folder / "grey.png")
    drawn(channels=2, seed=6).save(folder / "grey-alpha.png")
    drawn(seed=7).convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    drawn(seed=8).quantize(32).save(folder / "palette.png")
    drawn(seed=9).quantize(32).save(folder / "palette-clear.png", transparency=3)
    drawn(channels=1, seed=10).convert("1").save(folder / "two-tones.png")
    (folder / "sixteen.png").write_bytes(sixteen_bit_png(np.asarray(drawn(seed=11)).astype(np.uint16) * 257))
    drawn(16, 16, seed=12).save(folder / "just-right.png")
    return sorted(folder.iterdir())


def sixteen_bit_png(pixels):
    """A PNG of three channels with 16 bits each, which PIL reads but does not write."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
