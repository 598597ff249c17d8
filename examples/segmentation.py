"""x(t) at chosen times as feature maps, and a segmenter on top: `python examples/segmentation.py`.

The bundled model was trained to classify. Its frozen states at three times are the input channels of one convolution
that predicts a mask. Pictures are drawn here; seconds on a CPU.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor, nn

from odevit import OdeViTBackbone
from odevit.hf.processor import make_image_processor

TIMES = (0, 2, 6)


def draw(number: int) -> tuple[Image.Image, Image.Image]:
    """A disc of one colour on a background of another, and its mask."""
    random = torch.Generator().manual_seed(number + 1000)
    colours = torch.randint(0, 256, (2, 3), generator=random).tolist()
    x, y, r = (torch.rand(3, generator=random) * torch.tensor([20, 20, 4]) + torch.tensor([6, 6, 5])).tolist()
    picture, mask = Image.new("RGB", (32, 32), tuple(colours[0])), Image.new("L", (32, 32))
    for image, ink in ((picture, tuple(colours[1])), (mask, 1)):
        ImageDraw.Draw(image).ellipse((x - r, y - r, x + r, y + r), fill=ink)
    return picture, mask


def extract_features(backbone: OdeViTBackbone, numbers: range) -> tuple[Tensor, Tensor]:
    """The frozen features of drawings, [time, image, channel, row, column], and their masks, [image, 32, 32]."""
    pictures, masks = zip(*map(draw, numbers), strict=True)
    pixels = make_image_processor(backbone.config)(pictures, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        maps = torch.stack(backbone(pixels).feature_maps)
    return maps, torch.tensor(np.stack(masks), dtype=torch.long)


def overlap(logits: Tensor, masks: Tensor) -> float:
    """|A and B| / |A or B| of the predicted and the true discs."""
    found, true = logits.argmax(1) == 1, masks == 1
    return ((found & true).sum() / (found | true).sum()).item()


def train_head(maps: Tensor, masks: Tensor, epochs: int) -> nn.Module:
    """A convolution from feature maps to masks."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Conv2d(maps.shape[1], 2, kernel_size=3, padding=1), nn.Upsample((32, 32), mode="bilinear"))
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3)
    for _ in range(epochs):
        F.cross_entropy(head(maps), masks).backward()
        optimiser.step()
        optimiser.zero_grad()
    return head


def main(train: int = 128, test: int = 64, epochs: int = 40) -> dict[str, float]:
    backbone = OdeViTBackbone.from_pretrained("cifar10").eval()
    backbone.out_features = backbone.config.stages_at(TIMES)
    (maps, masks), (new_maps, new_masks) = (
        extract_features(backbone, range(train)),
        extract_features(backbone, range(-test, 0)),
    )
    found = {}
    for title, times in (("t = 0 alone", [0]), (f"t = {', '.join(map(str, TIMES))}", range(len(TIMES)))):
        seen, new = (torch.cat([part[index] for index in times], dim=1) for part in (maps, new_maps))
        found[title] = overlap(train_head(seen, masks, epochs)(new), new_masks)
        print(f"{title}: {found[title]:.1%} overlap with the true discs of {test} new drawings")
    return found


if __name__ == "__main__":
    main()
