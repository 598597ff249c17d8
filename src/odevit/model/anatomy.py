"""What surgeon and teacher have to know of a model, found by its structure and by one image of zeros."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from odevit.distill.architectures import BlockList, Place, find_place
from odevit.distill.layout import find_layout, patch_convolution
from odevit.model.layout import TokenLayout
from odevit.shapes import Pixels

HEAD_COUNTS = ("num_attention_heads", "num_heads", "heads")
# Positions that only the blocks know: rotary ones and relative biases.
ROTARY = re.compile(r"rope|rotary|relativeposition", re.IGNORECASE)


@dataclass(frozen=True)
class Anatomy:
    """The parts of a Vision Transformer.

    Args:
        place: where its blocks stand.
        blocks: L, how many there are.
        width: D of its tokens.
        tokens: how many tokens an image of its own size becomes.
        size: height and width of the images it was made for.
        channels: of those images.
        heads: of its attention; None when it does not say.
        eps: of the norms in its blocks; None when they have none.
        rotary: whether it gets its positions inside attention.
        labels: how many classes its head knows; None without a head.
    """

    place: Place
    blocks: int
    width: int
    tokens: int
    size: tuple[int, int]
    channels: int
    heads: int | None
    eps: float | None
    rotary: bool
    labels: int | None

    def layout(self, model: nn.Module, size: tuple[int, int] | None = None) -> TokenLayout:
        """Where CLS, patches and registers stand for an image of this size."""
        return find_layout(model, self.tokens, self.size, size or self.size)


@dataclass(frozen=True)
class Answer:
    """What a model says of an image: `logits` of a head, else one `pooled` vector."""

    logits: Tensor | None
    pooled: Tensor | None


@torch.no_grad()
def examine(model: nn.Module) -> Anatomy:
    """The anatomy of a model in evaluation mode. One image of zeros goes through it."""
    place = find_place(model)
    blocks = place.blocks(model)
    size, channels = image_size_of(model), channels_of(model)
    pixels = blank(model, channels, size)
    with place.watched(model) as trail:
        try:
            output = model(pixels)
        except Exception as error:
            raise ValueError(
                f"{type(model).__name__} did not accept an image of zeros of the shape {tuple(pixels.shape)} as its "
                f"only argument ({type(error).__name__}: {error}); expected a vision encoder or an image classifier"
            ) from error
    shapes = {tuple(state.shape) for state in trail.states}
    if len(trail.states) != len(blocks) + 1 or len(shapes) != 1 or trail.states[0].ndim != 3:
        raise ValueError(
            f"the {len(blocks)} modules in {place.name!r} of {type(model).__name__} are no Transformer blocks: "
            f"expected {len(blocks) + 1} states [batch, token, dim] of one shape, found {len(trail.states)} of the "
            f"shapes {sorted(shapes)}"
        )
    if isinstance(place, BlockList):
        place = replace(place, as_tuple=trail.as_tuple)
    _, tokens, width = trail.states[0].shape
    logits = answer_of(model, output).logits
    return Anatomy(
        place=place,
        blocks=len(blocks),
        width=width,
        tokens=tokens,
        size=size,
        channels=channels,
        heads=_first(blocks[0], HEAD_COUNTS, int),
        eps=_first(blocks[0], ("eps", "variance_epsilon"), float),
        rotary=any(ROTARY.search(type(module).__name__) for module in model.modules()),
        labels=None if logits is None else logits.shape[-1],
    )


def answer_of(model: nn.Module, output: Any) -> Answer:
    """Logits and pooled vector out of whatever a model returns."""
    if isinstance(output, Tensor):  # timm: logits, or features of a model without classes
        headless = getattr(model, "num_classes", None) == 0
        return Answer(None, output) if headless else Answer(output, None)
    if not isinstance(output, ModelOutput):
        raise ValueError(
            f"{type(model).__name__} returned a {type(output).__name__}; expected a tensor or a ModelOutput "
            "(set config.return_dict = True)"
        )
    named: Mapping[str, Any] = output
    pooled = next((named[key] for key in ("image_embeds", "pooler_output") if key in named), None)
    if pooled is None and "last_hidden_state" in named:
        pooled = named["last_hidden_state"][:, 0]
    return Answer(named.get("logits"), pooled)


def blank(model: nn.Module, channels: int, size: tuple[int, int]) -> Pixels:
    """One image of zeros, of the type and on the device of the model's weights."""
    like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    return torch.zeros(1, channels, *size, dtype=like.dtype, device=like.device)


def image_size_of(model: nn.Module) -> tuple[int, int]:
    """Height and width of the images a model was made for, as its configuration or its patch embedding says."""
    config = getattr(model, "config", None)
    places = (config, getattr(config, "vision_config", None), getattr(model, "patch_embed", None), model)
    for place in places:
        for name in ("image_size", "img_size"):
            value = getattr(place, name, None)
            if isinstance(value, int):
                return value, value
            if isinstance(value, Sequence) and len(value) == 2:
                return int(value[0]), int(value[1])
    raise ValueError(
        f"{type(model).__name__} does not say how large its images are; set model.image_size = (height, width) before"
    )


def channels_of(model: nn.Module) -> int:
    """How many channels a model's images have."""
    convolution = patch_convolution(model)
    if convolution is not None:
        return convolution.in_channels
    return int(getattr(getattr(model, "config", None), "num_channels", 3))


def _first(block: nn.Module, names: Sequence[str], kind: type) -> Any:
    """The first attribute of one of these names in a block or its parts."""
    for module in block.modules():
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, kind):
                return value
    return None
