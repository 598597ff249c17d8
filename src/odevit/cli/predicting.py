"""odevit predict: images -> labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from odevit.cli.words import Verb
from odevit.data import read_picture
from odevit.model import load


@dataclass(frozen=True)
class Prediction:
    """The likeliest labels of an image, with their probabilities."""

    image: str
    labels: tuple[tuple[str, float], ...]


def predict(
    images: Sequence[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str] = "cifar10",
    top: int = 3,
    solver: str | None = None,
    steps: int | None = None,
    horizon: float | None = None,
) -> list[Prediction]:
    """Classify image files.

    Pictures are turned upright as their EXIF orientation says. One that is not square is stretched to the model's
    square as a whole: crop it first if its proportions matter. Data sets are read differently, by their centred square.

    Args:
        images: paths of image files.
        model: folder of a run or of any saved model, or the name of a bundled model.
        top: how many labels to give for each image.
        solver, steps, horizon: how to integrate; the model's own unless given.
    """
    network = load(model)
    way = network.depth.choose(solver, steps, horizon)
    predictions = []
    for path in images:
        with torch.no_grad():
            logits, _ = network.ask(network.pixels_of(read_picture(path)), way)
        shares, numbers = logits.softmax(-1)[0].topk(min(top, logits.shape[-1]))
        labels = [network.labels.get(number, f"class {number}") for number in numbers.tolist()]
        predictions.append(Prediction(os.fspath(path), tuple(zip(labels, shares.tolist(), strict=True))))
    return predictions


def _show(predictions: list[Prediction]) -> None:
    for prediction in predictions:
        print(prediction.image + "\t" + "  ".join(f"{label} {share:.1%}" for label, share in prediction.labels))


PREDICT = Verb("predict", predict, _show, "odevit predict cat.png top=5")
