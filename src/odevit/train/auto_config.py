"""words, data, device -> recipe: what the words leave open is chosen, and said.

A choice is a word that could have been typed. What was typed is never chosen, and `experiment=` leaves nothing open.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from odevit.core.configuration_odevit import OdeViTConfig
from odevit.data.loading import DataSummary, inspect_data
from odevit.train.compose import expand_data, quoted, word
from odevit.train.recipe import Recipe
from odevit.train.recipe_keys import current_overrides
from odevit.train.splits import resolve_device

R = TypeVar("R", bound=Recipe)

SIDES = (8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Image sizes that halve to 4, 6 or 8 tokens a side."""
LARGEST = {"cpu": 64, "cuda": 128}
WIDTHS = (16, 32, 64, 64, 64)
"""Between the convolutions of a small model's tokeniser, the more of which the larger the image."""
MANY = 5000
"""Images from which on training from scratch is worth a GPU; with fewer, a pretrained ViT knows more."""
IMAGES_SEEN = 40_000
"""Images times epochs with a small model, in minutes on a CPU: 5 to 60 epochs."""
PRETRAINED = "facebook/dino-vits16"


class AutoConfig(NamedTuple, Generic[R]):
    """A recipe, the words that were chosen for it, and lines that say so."""

    recipe: R
    words: list[str]
    said: list[str]


def auto_configure(
    words: Sequence[str], compose: Callable[[Sequence[str]], R], verb: str = "train", swept: Sequence[str] = ()
) -> AutoConfig[R]:
    """The recipe of the words, what they leave open chosen by data and device. What is swept is not left open."""
    words = current_overrides(words)
    given = dict(word.partition("=")[::2] for word in [*expand_data(words), *swept])
    recipe = compose(words)
    # A given teacher is distilled by an experiment of its own.
    if recipe.data.source == "digits" or "experiment" in given or (verb == "distill" and recipe.teacher):
        return AutoConfig(recipe, [], [])
    keys = ("validation", "image_column", "label_column")
    facts = inspect_data(recipe.data.source, **{key: getattr(recipe.data, key) for key in keys})
    kind, chosen = recipe.device.partition(":")[0], dict[str, Any]()
    device = resolve_device(kind).type if kind in ("auto", *LARGEST) else "cpu"  # any other is refused in a moment
    for choose in (by_data, batches):
        chosen |= {key: value for key, value in choose(facts, recipe, given, device, verb).items() if key not in given}
        recipe = compose([*typed(chosen), *words])
    return AutoConfig(recipe, typed(chosen), lines(facts, chosen, recipe, device, verb))


def by_data(facts: DataSummary, recipe: Recipe, given: Mapping[str, str], device: str, verb: str) -> dict[str, Any]:
    """A name, a model with an image size, a way to learn. Who starts from weights has a model."""
    name = re.sub(r"[^\w.-]+", "-", facts.name.rpartition("/")[2])
    many = facts.images >= MANY and device == "cuda"
    chosen: dict[str, Any] = {"name": f"{verb}-{name}"}
    varied: dict[str, Any] = {"crop": 0.125, "flip": facts.colour}
    if verb == "train" and recipe.teacher:
        chosen = {"name": f"{Path(recipe.teacher).name}-{name}", "train": "head" if recipe.head_only else "finetune"}
        if not recipe.head_only:
            # No smoothed labels: a teacher whose answers are all alike teaches less (Müller et al. 2019).
            chosen |= {f"data.augmentation.{key}": value for key, value in varied.items()}
    elif verb == "train":
        chosen = {"name": name, "train": "fast" if many else "small"}
        if not many and "train" not in given:
            chosen["train.epochs"] = min(60, max(5, IMAGES_SEEN // facts.images))
        varied["label_smoothing"] = 0.1
        chosen |= {f"data.augmentation.{key}": value for key, value in varied.items()}
    if not (recipe.teacher or recipe.init_from or "model" in given):
        asked = given.get("model.image_size", "")
        side = int(asked) if asked.isdecimal() else image_size(facts.side, device)
        count = halvings(side) - 1
        chosen |= {"model": "tiny-conv" if many else "small"} if verb == "train" else {}
        chosen |= {"model.image_size": side, "model.tokenizer_channels": [56] * count if many else WIDTHS[:count]}
    return chosen


def batches(facts: DataSummary, recipe: Recipe, *_: Any) -> dict[str, Any]:
    """Batches that the data can fill twice, in every part of the recipe that has larger ones."""
    largest = 2 ** int(log2(max(1, facts.images // 2)))
    learning = {key: getattr(recipe, key, None) for key in ("train", "teacher_train")}
    return {f"{key}.batch_size": largest for key, part in learning.items() if part and part.batch_size > largest}


def image_size(side: int, device: str) -> int:
    """The largest size that is no larger than the images and that the device has time for."""
    return max(size for size in SIDES if size <= max(SIDES[0], min(side, LARGEST[device])))


def halvings(side: int) -> int:
    """How often a tokeniser halves images of this size: down to 6 or 8 tokens a side, as far as it goes evenly."""
    wanted = max(1, int(log2(max(side, 12) / 6)))
    return next((count for count in range(wanted, 0, -1) if side % 2**count == 0), 1)


def model_image_size(recipe: Recipe) -> int:
    """The side of the images as the model sees them; 0 for a size that is none, of which the recipe will complain."""
    size = recipe.model_settings().get("image_size", OdeViTConfig.image_size)
    return size if isinstance(size, int) else 0


def as_words(chosen: Mapping[str, Any]) -> list[str]:
    """Choices as they would be typed."""
    return [f"{key}={word(value)}" for key, value in chosen.items()]


def typed(chosen: Mapping[str, Any]) -> list[str]:
    """The same for Hydra, to whom the name of a folder stays a text, be it 1e3 or true."""
    return as_words({key: quoted(value) if key == "name" else value for key, value in chosen.items()})


def lines(facts: DataSummary, chosen: Mapping[str, Any], recipe: Recipe, device: str, verb: str) -> list[str]:
    """The facts, the choices line by line, and what would be better where there are few images."""
    said = [
        f"{facts.name}: {facts.images:,} images to train on, {facts.classes} classes, "
        f"{'colour' if facts.colour else 'grey'}, {facts.side} px (median of the shorter sides)"
    ]
    if not (recipe.teacher or recipe.init_from):
        said[0] += f", seen at {model_image_size(recipe)} px"
    if chosen:
        said.append("Chosen to suit them; type any of these with another value to change it:")
        groups = dict.fromkeys(key.partition(".")[0] for key in chosen)
        said += [
            "  " + "  ".join(as_words({key: value for key, value in chosen.items() if key.partition(".")[0] == group}))
            for group in groups
        ]
    if verb == "train" and not (recipe.teacher or recipe.init_from) and facts.images < MANY:
        words = [f"teacher={PRETRAINED}", *(["head_only=true"] if device == "cpu" else [])]
        said.append(
            "With so few images, a pretrained ViT usually does better: "
            + shlex.join(["odevit", "train", *words, f"data={recipe.data.source}"])
        )
    return said
