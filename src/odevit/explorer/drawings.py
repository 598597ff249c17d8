"""Five drawings of CIFAR-10 classes, made of polygons, because the package contains no photographs."""

from __future__ import annotations

from PIL import Image, ImageDraw

SIZE = 128
WINDOW, TYRE = (170, 205, 225), (25, 25, 25)


def canvas(
    sky: tuple[int, int, int], ground: tuple[int, int, int] | None = None, horizon: int = 94
) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (SIZE, SIZE), sky)
    pen = ImageDraw.Draw(image)
    if ground is not None:
        pen.rectangle([0, horizon, SIZE, SIZE], fill=ground)
    return image, pen


def airplane() -> Image.Image:
    image, pen = canvas((135, 190, 235))
    pen.polygon([(10, 66), (100, 56), (118, 62), (100, 70), (20, 76)], fill=(235, 235, 240))
    pen.polygon([(50, 62), (75, 62), (50, 100), (38, 100)], fill=(200, 205, 215))
    pen.polygon([(55, 60), (72, 58), (52, 30), (44, 30)], fill=(215, 220, 228))
    pen.polygon([(10, 66), (24, 65), (14, 46), (6, 46)], fill=(200, 60, 60))
    return image


def ship() -> Image.Image:
    image, pen = canvas((190, 215, 235), (30, 80, 140), horizon=84)
    pen.polygon([(12, 72), (116, 72), (100, 96), (28, 96)], fill=(150, 40, 40))
    pen.rectangle([44, 52, 88, 72], fill=(240, 240, 240))
    pen.rectangle([60, 34, 72, 52], fill=(60, 60, 60))
    return image


def truck() -> Image.Image:
    image, pen = canvas((200, 210, 220), (110, 110, 110), horizon=96)
    pen.rectangle([10, 38, 84, 92], fill=(225, 225, 225))
    pen.polygon([(86, 56), (108, 56), (120, 74), (120, 92), (86, 92)], fill=(190, 40, 40))
    pen.rectangle([92, 60, 106, 72], fill=WINDOW)
    for x in (28, 60, 102):
        pen.ellipse([x - 10, 84, x + 10, 104], fill=TYRE)
    return image


def automobile() -> Image.Image:
    image, pen = canvas((210, 215, 220), (120, 120, 120), horizon=92)
    pen.rounded_rectangle([8, 62, 120, 90], 10, fill=(190, 30, 35))
    pen.polygon([(30, 64), (46, 42), (84, 42), (102, 64)], fill=(190, 30, 35))
    pen.polygon([(38, 62), (49, 46), (62, 46), (62, 62)], fill=WINDOW)
    pen.polygon([(66, 62), (66, 46), (82, 46), (94, 62)], fill=WINDOW)
    for x in (32, 96):
        pen.ellipse([x - 12, 78, x + 12, 102], fill=TYRE)
    return image


def frog() -> Image.Image:
    image, pen = canvas((120, 95, 60))
    for box in ([24, 44, 104, 104], [34, 26, 60, 54], [70, 26, 96, 54], [8, 84, 44, 112], [86, 84, 122, 112]):
        pen.ellipse(box, fill=(70, 140, 50))
    for x in (47, 83):
        pen.ellipse([x - 6, 34, x + 6, 46], fill=(15, 15, 15))
    pen.arc([44, 60, 86, 86], 20, 160, fill=(30, 70, 20), width=4)
    return image


DRAWINGS = {draw.__name__: draw for draw in (airplane, ship, truck, automobile, frog)}
