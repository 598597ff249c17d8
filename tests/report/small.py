"""The smallest things that can be reported on."""

import numpy as np
import torch
from PIL import Image

from odevit.core.base import Dynamics, Field
from odevit.report.study import Sample, Sizes
from tests.tiny import tiny_model

FEW = Sizes(accurate=5, solvers=4, limits=2, groups=2, radius=3, depths=3, spectrum=2, lipschitz=2, approximation=2)


class Linear(Field):
    """dx/dt = A x - leak (x - x0)."""

    def __init__(self, matrix, leak=0.0):
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.leak = leak

    def dynamics(self, x0):
        return Dynamics({"linear": lambda x, t, _: x @ self.matrix.T}, anchor=x0, leak=self.leak)


def images(count=6, labels=5):
    """Batches of two sizes."""
    pixels, classes = torch.randn(count, 3, 16, 16), torch.arange(count) % labels
    cut = count - count // 3
    return [
        {"pixel_values": pixels[:cut], "labels": classes[:cut]},
        {"pixel_values": pixels[cut:], "labels": classes[cut:]},
    ]


def sample_of(model, batches):
    """Batches as a sample of a report."""
    with torch.no_grad():
        chunks = [{"x0": model.embed(batch["pixel_values"]), "labels": batch["labels"]} for batch in batches]
    count = sum(len(chunk["labels"]) for chunk in chunks)
    classes = tuple("abcde")
    return Sample(torch.arange(count), chunks, batches, classes, (0.5,) * 3, (0.5,) * 3, available=count)


def picture_folder(folder, classes=("a", "b", "c"), of_each=4):
    """Noise of different strengths, as a folder of class folders."""
    numbers = np.random.default_rng(0)  # PIL's own noise is another one every time
    for part in ("train", "test"):
        for number, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for i in range(of_each):
                levels = numbers.normal(128, 20 + 60 * number, (16, 16)).clip(0, 255).astype(np.uint8)
                Image.fromarray(levels).convert("RGB").save(folder / part / name / f"{i}.png")
    return folder


def model_folder(folder, **overrides):
    """An untrained model of three classes in a folder of its own."""
    torch.manual_seed(0)
    tiny_model(**{"num_labels": 3, "steps": 3, "horizon": 1.5, "norm": "layer", **overrides}).save_pretrained(folder)
    return folder
