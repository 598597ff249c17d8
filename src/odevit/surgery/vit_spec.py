"""model -> VitSpec: the properties of a ViT that a student depends on, from its structure and one image of zeros."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import ModelOutput

from odevit.attention.rotary import Rotary
from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.hf.processor import check_processor, shape_of
from odevit.surgery.block_locator import BlockList, BlockLocator, StackedBlocks, find_blocks
from odevit.tokens import Pixels, PrefixLayout, TokenLayout

CLS_NAMES = ("cls_token", "class_token", "class_embedding")
HEAD_COUNTS = ("num_attention_heads", "num_heads", "heads")
# Positions inside attention: rotary ones and relative biases.
ROTARY = re.compile(r"rope|rotary|relativeposition", re.IGNORECASE)


@dataclass(frozen=True)
class VitSpec:
    """The properties of a Vision Transformer. Their names are keys of a student's config.json, under `anatomy`."""

    place: str  # the dotted name of the module that holds its blocks
    as_tuple: bool  # whether a block returns a tuple
    own: bool  # whether it is a model of odevit
    blocks: int  # L, how many there are
    width: int  # D of its tokens
    tokens: int  # how many an image of its own size becomes
    size: tuple[int, int]  # height and width of the images it was made for
    channels: int  # of those images
    heads: int | None  # of its attention; None if not found
    eps: float | None  # of the norms in its blocks; None when they have none
    rotary: bool  # whether its attention adds positions
    labels: int | None  # the number of classes; None without a head
    theta: float | None = None  # the base of its rotary positions, if they are those of `Rotary`

    @property
    def locator(self) -> BlockLocator:
        """The locator of its blocks, which reads and replaces them."""
        return (StackedBlocks if self.own else BlockList)(self.place)

    def layout(self, model: nn.Module, size: tuple[int, int] | None = None) -> TokenLayout:
        """Where CLS, patches and registers are, for an image of this size or of the model's own."""
        size = size or self.size
        if isinstance(model, OdeViTModel | OdeViTForImageClassification):
            return model.layout(*size)
        convolution = patch_convolution(model)
        if convolution is None:
            raise ValueError(
                f"{type(model).__name__} cuts images into patches without a convolution, so its {self.tokens} tokens "
                "cannot be told apart; pass positions=False, and slices of your own where a layout is asked for"
            )
        rows, columns = _grid(convolution, self.size)
        extra = self.tokens - rows * columns
        if extra < 0:
            raise ValueError(
                f"{type(model).__name__} makes {self.tokens} tokens of a {self.size[0]}x{self.size[1]} image, fewer "
                f"than the {rows}x{columns} patches of its first convolution; its layout cannot be told"
            )
        has_cls = extra > 0 and any(name.rpartition(".")[2] in CLS_NAMES for name, _ in model.named_parameters())
        return PrefixLayout(has_cls, _grid(convolution, size), extra - int(has_cls))


@dataclass(frozen=True)
class ViTOutput:
    """The output of any model for an image: `logits` of a head, or else one `pooled` vector."""

    logits: Tensor | None
    pooled: Tensor | None


@torch.no_grad()
def inspect_vit(model: nn.Module, size: tuple[int, int] | None = None) -> VitSpec:
    """The properties of a model in evaluation mode. Runs it on one image of zeros, of its own size unless given."""
    locator = find_blocks(model)
    blocks = locator.blocks(model)
    size, convolution = size or image_size_of(model), patch_convolution(model)
    channels = getattr(getattr(model, "config", None), "num_channels", 3)
    channels = int(channels) if convolution is None else convolution.in_channels
    pixels = zero_image(model, channels, size)
    with locator.record_states(model) as trace:
        try:
            output = model(pixels)
        except Exception as error:
            raise ValueError(
                f"{type(model).__name__} did not accept an image of zeros of the shape {tuple(pixels.shape)} as its "
                f"only argument ({type(error).__name__}: {error}); expected a vision encoder or an image classifier"
            ) from error
    shapes = {tuple(state.shape) for state in trace.states}
    if len(trace.states) != len(blocks) + 1 or len(shapes) != 1 or trace.states[0].ndim != 3:
        raise ValueError(
            f"the {len(blocks)} modules in {locator.name!r} of {type(model).__name__} are no Transformer blocks: "
            f"expected {len(blocks) + 1} states [batch, token, dim] of one shape, found {len(trace.states)} of the "
            f"shapes {sorted(shapes)}"
        )
    _, tokens, width = trace.states[0].shape
    logits = parse_output(model, output).logits
    vit_spec = VitSpec(
        place=locator.name,
        as_tuple=trace.as_tuple,
        own=isinstance(locator, StackedBlocks),
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
    return replace(vit_spec, theta=_theta(model, vit_spec, trace.positions))


def fit_to_processor(vit_spec: VitSpec, model: nn.Module, processor: BaseImageProcessor | None) -> VitSpec:
    """The properties for images of the size that the model's image processor makes."""
    if processor is None:
        return vit_spec
    check_processor(processor)
    channels, height, width = shape_of(processor)
    if (channels, height, width) == (vit_spec.channels, *vit_spec.size):
        return vit_spec
    try:
        if channels == vit_spec.channels:
            return inspect_vit(model, (height, width))  # DINOv2 is made for 518 and its processor makes 224
    except ValueError:
        pass
    expected = " x ".join(map(str, (vit_spec.channels, *vit_spec.size)))
    raise ValueError(
        f"the image processor of the {type(model).__name__} makes pictures of {channels} x {height} x {width}, which "
        f"it does not take; expected {expected}: correct its preprocessor_config.json"
    )


def parse_output(model: nn.Module, output: Any) -> ViTOutput:
    """Logits and pooled vector from the output of a model of any library."""
    if isinstance(output, Tensor):  # timm: logits, or features of a model without classes
        headless = getattr(model, "num_classes", None) == 0
        return ViTOutput(None, output) if headless else ViTOutput(output, None)
    if not isinstance(output, ModelOutput):
        raise ValueError(
            f"{type(model).__name__} returned a {type(output).__name__}; expected a tensor or a ModelOutput "
            "(set config.return_dict = True)"
        )
    named: Mapping[str, Any] = output
    pooled = next((named[key] for key in ("image_embeds", "pooler_output") if key in named), None)
    if pooled is None and "last_hidden_state" in named:
        pooled = named["last_hidden_state"][:, 0]
    return ViTOutput(named.get("logits"), pooled)


def zero_image(model: nn.Module, channels: int, size: tuple[int, int]) -> Pixels:
    """One image of zeros, of the dtype and on the device of the model's weights."""
    like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    return torch.zeros(1, channels, *size, dtype=like.dtype, device=like.device)


def image_size_of(model: nn.Module) -> tuple[int, int]:
    """Height and width of a model's images, from its configuration or its patch embedding."""
    config = getattr(model, "config", None)
    places = (config, getattr(config, "vision_config", None), getattr(model, "patch_embed", None), model)
    for place, name in itertools.product(places, ("image_size", "img_size")):
        value = getattr(place, name, None)
        if isinstance(value, int):
            return value, value
        if isinstance(value, Sequence) and len(value) == 2:
            return int(value[0]), int(value[1])
    raise ValueError(f"{type(model).__name__} has no image_size; set model.image_size = (height, width) before")


def patch_convolution(model: nn.Module) -> nn.Conv2d | None:
    """The convolution that cuts images into patches: the first of the model."""
    return next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)


def _grid(convolution: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int]:
    height, width = (
        (length - kernel) // stride + 1
        for length, kernel, stride in zip(size, convolution.kernel_size, convolution.stride, strict=True)
    )
    return height, width


def _theta(model: nn.Module, vit_spec: VitSpec, tables: Any) -> float | None:
    """The base of a model's rotary positions; None if it has none, or others than a field can have.

    For a model of another library, `tables`, the cosines and sines that its blocks receive, are compared with ours.
    """
    theta = getattr(getattr(model, "config", None), "rope_theta", None) or None
    if vit_spec.own or theta is None or vit_spec.heads is None or not isinstance(tables, tuple) or len(tables) != 2:
        return theta if vit_spec.own else None
    layout, head_dim = vit_spec.layout(model), vit_spec.width // vit_spec.heads
    ours = Rotary(theta, layout).rotation(vit_spec.tokens, head_dim, tables[0].device)
    # They may be rounded to half precision.
    same = (
        table.shape == (layout.num_patches, head_dim) and torch.allclose(table.float(), own[layout.patches], atol=1e-2)
        for table, own in zip(tables, ours, strict=True)
    )
    return theta if head_dim % 4 == 0 and all(same) else None


def _first(block: nn.Module, names: Sequence[str], kind: type) -> Any:
    """The first attribute of one of these names in a block or its parts."""
    values = (getattr(module, name, None) for module, name in itertools.product(block.modules(), names))
    return next((value for value in values if isinstance(value, kind)), None)
