"""The smallest things that can be reported on."""

import torch
from PIL import Image

from odevit.analysis.subject import Subject
from odevit.field import Dynamics, Field
from odevit.report.collect import Sizes
from tests.model.tiny import tiny_model

FEW = Sizes(accurate=5, solvers=4, limits=2, groups=2, radius=3, depths=3, spectrum=2, lipschitz=2, approximation=2)


class Linear(Field):
    """dx/dt = A x - leak (x - x0)."""

    def __init__(self, matrix, leak=0.0):
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.leak = leak

    def dynamics(self, x0):
        return Dynamics({"linear": lambda x, t, _: x @ self.matrix.T}, anchor=x0, leak=self.leak)


def tiny_subject(**overrides):
    return Subject.of(tiny_model(**overrides))


def images(count=6, labels=5):
    """Batches of two sizes."""
    pixels, classes = torch.randn(count, 3, 16, 16), torch.arange(count) % labels
    cut = count - count // 3
    return [
        {"pixel_values": pixels[:cut], "labels": classes[:cut]},
        {"pixel_values": pixels[cut:], "labels": classes[cut:]},
    ]


def picture_folder(folder, classes=("a", "b", "c"), of_each=4):
    """Noise of different strengths, as a folder of class folders."""
    for part in ("train", "test"):
        for number, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for i in range(of_each):
                Image.effect_noise((16, 16), 20 + 60 * number).convert("RGB").save(folder / part / name / f"{i}.png")
    return folder


def model_folder(folder, **overrides):
    """An untrained model of three classes in a folder of its own."""
    torch.manual_seed(0)
    tiny_model(**{"num_labels": 3, "steps": 3, "horizon": 1.5, "norm": "layer", **overrides}).save_pretrained(folder)
    return folder
