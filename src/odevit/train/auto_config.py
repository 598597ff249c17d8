"""overrides, data, device -> recipe: what the overrides leave open is chosen, and printed.

A choice is an override that could have been typed. What was typed stands; `experiment=` disables auto-configuration.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from odevit.core.configuration_odevit import OdeViTConfig
from odevit.data.loading import DataSummary, inspect_data
from odevit.train.compose import compose_as, expand_data
from odevit.train.recipe import Recipe
from odevit.train.recipe_keys import current_overrides, given_keys, quoted, word
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
    """A recipe, the overrides that were chosen for it, and the printed lines that list them."""

    recipe: R
    overrides: list[str]
    messages: list[str]


def auto_configure(overrides: Sequence[str], kind: type[R], swept: Sequence[str] = ()) -> AutoConfig[R]:
    """The recipe of the overrides; what they leave open is chosen by the data and the device.

    Args:
        overrides: as typed.
        kind: of recipe.
        swept: overrides with several values, whose keys are not left open either.
    """
    overrides = current_overrides(overrides)
    given = given_keys([*expand_data(overrides), *swept])
    recipe = compose_as(kind, overrides)
    # A given teacher is distilled by an experiment of its own.
    if recipe.data.source == "digits" or "experiment" in given or (kind.verb == "distill" and recipe.teacher):
        return AutoConfig(recipe, [], [])
    keys = ("validation", "image_column", "label_column")
    data = inspect_data(recipe.data.source, **{key: getattr(recipe.data, key) for key in keys})
    kind_of_device = recipe.device.partition(":")[0]
    # An unknown device is refused when the recipe is checked.
    device = resolve_device(kind_of_device).type if kind_of_device in ("auto", *LARGEST) else "cpu"
    chosen = {key: value for key, value in by_data(data, recipe, given, device).items() if key not in given}
    recipe = compose_as(kind, [*as_overrides(chosen), *overrides])
    chosen |= limit_batches(data, recipe, given)
    return AutoConfig(recipe, as_overrides(chosen), describe(data, chosen, recipe, device))


def by_data(data: DataSummary, recipe: Recipe, given: Mapping[str, str], device: str) -> dict[str, Any]:
    """A name, a way to train, and unless weights are given, a model with an image size."""
    name = re.sub(r"[^\w.-]+", "-", data.name.rpartition("/")[2])
    many = data.images >= MANY and device == "cuda"
    chosen: dict[str, Any] = {"name": f"{recipe.verb}-{name}"}
    augmentation: dict[str, Any] = {"crop": 0.125, "flip": data.colour}
    if recipe.verb == "train" and recipe.teacher:
        chosen = {"name": f"{Path(recipe.teacher).name}-{name}", "train": "head" if recipe.head_only else "finetune"}
        if recipe.head_only:
            augmentation = {}
        # No smoothed labels: a teacher trained with them teaches less (Müller et al. 2019).
    elif recipe.verb == "train":
        chosen = {"name": name, "train": "fast" if many else "small"}
        if not many and "train" not in given:
            chosen["train.epochs"] = min(60, max(5, IMAGES_SEEN // data.images))
        augmentation["label_smoothing"] = 0.1
    if recipe.verb == "train":
        chosen |= {f"data.augmentation.{key}": value for key, value in augmentation.items()}
    if not (recipe.teacher or recipe.init_from or "model" in given):
        typed = given.get("model.image_size", "")
        side = int(typed) if typed.isdecimal() else image_size(data.side, device)
        count = halvings(side) - 1
        chosen |= {"model": "tiny-conv" if many else "small"} if recipe.verb == "train" else {}
        chosen |= {"model.image_size": side, "model.tokenizer_channels": [56] * count if many else WIDTHS[:count]}
    return chosen


def limit_batches(data: DataSummary, recipe: Recipe, given: Mapping[str, str]) -> dict[str, Any]:
    """Reduce batches that the data does not fill twice, in every part of the recipe; the sizes that were changed."""
    largest = 2 ** int(log2(max(1, data.images // 2)))
    parts = {key: getattr(recipe, key, None) for key in ("train", "teacher_train")}
    chosen: dict[str, Any] = {}
    for key, part in parts.items():
        if part and part.batch_size > largest and f"{key}.batch_size" not in given:
            part.batch_size = chosen[f"{key}.batch_size"] = largest
    return chosen


def image_size(side: int, device: str) -> int:
    """The largest of `SIDES` that is no larger than the images and than the limit of the device."""
    return max(size for size in SIDES if size <= max(SIDES[0], min(side, LARGEST[device])))


def halvings(side: int) -> int:
    """How often a tokeniser halves images of this size: down to 6 or 8 tokens a side, as far as it goes evenly."""
    wanted = max(1, int(log2(max(side, 12) / 6)))
    return next((count for count in range(wanted, 0, -1) if side % 2**count == 0), 1)


def model_image_size(recipe: Recipe) -> int:
    """The side of the model's images; 0 for a size that is no number, which the check of the recipe refuses."""
    size = recipe.model_settings().get("image_size", OdeViTConfig.image_size)
    return size if isinstance(size, int) else 0


def as_overrides(chosen: Mapping[str, Any]) -> list[str]:
    """Choices as overrides for Hydra; the name of a run stays a text, even if it is 1e3 or true."""
    return _typed({key: quoted(value) if key == "name" else value for key, value in chosen.items()})


def describe(data: DataSummary, chosen: Mapping[str, Any], recipe: Recipe, device: str) -> list[str]:
    """Lines about the data and the choices, and a command that works better where there are few images."""
    pretrained = recipe.teacher or recipe.init_from
    size = "" if pretrained else f", resized to {model_image_size(recipe)} px"
    lines = [
        f"{data.name}: {data.images:,} images to train on, {data.classes} classes, "
        f"{'colour' if data.colour else 'grey'}, {data.side} px (median of the shorter sides){size}"
    ]
    if chosen:
        lines.append("Options chosen for this data; type any of them to change it:")
        groups = dict.fromkeys(key.partition(".")[0] for key in chosen)
        lines += [
            "  " + "  ".join(_typed({key: value for key, value in chosen.items() if key.partition(".")[0] == group}))
            for group in groups
        ]
    if recipe.verb == "train" and not pretrained and data.images < MANY:
        options = [f"teacher={PRETRAINED}", *(["head_only=true"] if device == "cpu" else [])]
        command = shlex.join(["odevit", "train", *options, f"data={recipe.data.source}"])
        lines.append(f"With so few images, a pretrained ViT usually does better: {command}")
    return lines


def _typed(chosen: Mapping[str, Any]) -> list[str]:
    return [f"{key}={word(value)}" for key, value in chosen.items()]
