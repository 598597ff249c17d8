"""[ CLS | registers | patches ]: where each kind of token stands in the models of others, and in their students."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from odevit.model.layout import TokenLayout
from odevit.model.modeling_odevit import OdeViTForImageClassification, OdeViTModel

CLS_NAMES = ("cls_token", "class_token", "class_embedding")


@dataclass(frozen=True)
class PrefixLayout(TokenLayout):
    """[ CLS | registers | patches | appended ]: Hugging Face's and timm's order, and what a student puts behind it.

    DeiT's distillation token is a register.

    Args:
        num_appended: how many registers of a student follow the patches; none in the teacher itself.
    """

    num_appended: int = 0

    @property
    def registers(self) -> slice:
        return slice(self.cls.stop, self.cls.stop + self.num_registers)

    @property
    def patches(self) -> slice:
        return slice(self.registers.stop, self.registers.stop + self.num_patches)

    @property
    def appended(self) -> slice:
        return slice(self.patches.stop, self.patches.stop + self.num_appended)

    def __len__(self) -> int:
        return self.appended.stop


def with_registers(layout: TokenLayout, count: int) -> TokenLayout:
    """The layout of the same tokens with `count` registers behind them. CLS and patches stay where they are."""
    if count == 0:
        return layout
    if isinstance(layout, PrefixLayout) and layout.num_registers:
        # One slice cannot name registers on both sides of the patches: the teacher's keep the name.
        return replace(layout, num_appended=count)
    return TokenLayout(layout.has_cls, layout.grid, layout.num_registers + count)


def patch_convolution(model: nn.Module) -> nn.Conv2d | None:
    """The convolution that cuts images into patches: the first of the model."""
    return next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)


def find_layout(model: nn.Module, tokens: int, size: tuple[int, int], other: tuple[int, int]) -> TokenLayout:
    """The layout for an image of the size `other`, given that one of `size` becomes `tokens` tokens."""
    if isinstance(model, OdeViTModel | OdeViTForImageClassification):
        return model.layout(*other)
    convolution = patch_convolution(model)
    if convolution is None:
        raise ValueError(
            f"{type(model).__name__} cuts images into patches without a convolution, so its {tokens} tokens cannot be "
            "told apart; pass positions=False, and slices of your own where a layout is asked for"
        )
    own, grid = _grid(convolution, size), _grid(convolution, other)
    extra = tokens - own[0] * own[1]
    if extra < 0:
        raise ValueError(
            f"{type(model).__name__} makes {tokens} tokens of a {size[0]}x{size[1]} image, fewer than the "
            f"{own[0]}x{own[1]} patches of its first convolution; its layout cannot be told"
        )
    has_cls = extra > 0 and any(name.rpartition(".")[2] in CLS_NAMES for name, _ in model.named_parameters())
    return PrefixLayout(has_cls, grid, extra - int(has_cls))


def _grid(convolution: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int]:
    height, width = (
        (length - kernel) // stride + 1
        for length, kernel, stride in zip(size, convolution.kernel_size, convolution.stride, strict=True)
    )
    return height, width
