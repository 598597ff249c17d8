"""Folders of drawn pictures as people have them: shapes of any colour in pictures that are not square."""

from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

SHAPES = ("circle", "cross", "square", "triangle")


def drawn(shape: str, seed: int) -> Image.Image:
    """A shape within the centred square of a picture, which is wide or tall; what lies outside it says nothing."""
    random = Random(f"{shape} {seed}")
    side, longer = random.randint(56, 72), random.randint(80, 120)
    width, height = (longer, side) if random.random() < 0.5 else (side, longer)
    dark, light = ([random.randint(*levels) for _ in range(3)] for levels in ((0, 90), (160, 255)))
    ground, ink = (dark, light) if random.random() < 0.5 else (light, dark)
    picture = Image.new("RGB", (width, height), tuple(ground))
    pen = ImageDraw.Draw(picture)
    r = side * random.uniform(0.25, 0.4)
    x, y = (length / 2 + random.uniform(-0.08, 0.08) * side for length in (width, height))
    if shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=tuple(ink))
    elif shape == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=tuple(ink))
    elif shape == "triangle":
        pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=tuple(ink))
    else:
        for box in ((x - r, y - r / 3, x + r, y + r / 3), (x - r / 3, y - r, x + r / 3, y + r)):
            pen.rectangle(box, fill=tuple(ink))
    return picture


def folder_of_shapes(folder: Path, each: int, shapes: tuple[str, ...] = SHAPES) -> Path:
    """<folder>/<shape>/<number>.png, `each` of every shape."""
    for shape in shapes:
        (folder / shape).mkdir(parents=True)
        for number in range(each):
            drawn(shape, number).save(folder / shape / f"{number:03d}.png")
    return folder


def folder_as_found(folder: Path, train: int, test: int, shapes: tuple[str, ...] = SHAPES) -> Path:
    """<folder>/train|test/<shape>/...: every format and mode, some photographs turned by EXIF, and what is no picture.

    A text lies among the pictures, and the last one of the first class to train on is torn.
    """
    for part, each in (("train", train), ("test", test)):
        for shape in shapes:
            (folder / part / shape).mkdir(parents=True)
            for number in range(each):
                save_as_found(drawn(shape, number + train * (part == "test")), folder / part / shape, number)
    (folder / "notes.txt").write_text("taken on holiday")
    (folder / "train" / shapes[0] / "notes.txt").write_text("the best one is 003")
    torn = folder / "train" / shapes[0] / "torn.jpg"
    drawn(shapes[0], 999).save(torn)
    torn.write_bytes(torn.read_bytes()[:200])
    return folder


def save_as_found(picture: Image.Image, folder: Path, number: int) -> None:
    """One of eight ways to keep a picture, in turn."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be seen upright, turn it clockwise
    ways = (
        lambda path: picture.save(path.with_suffix(".jpg")),
        lambda path: picture.save(path.with_suffix(".PNG")),
        lambda path: picture.save(path.with_suffix(".gif")),
        lambda path: picture.save(path.with_suffix(".webp")),
        lambda path: picture.save(path.with_suffix(".bmp")),
        lambda path: picture.convert("L").save(path.with_suffix(".png")),
        lambda path: picture.convert("RGBA").save(path.with_suffix(".png")),
        lambda path: picture.transpose(Image.Transpose.ROTATE_90).save(path.with_suffix(".jpeg"), exif=exif),
    )
    ways[number % len(ways)](folder / f"{number:03d}")
