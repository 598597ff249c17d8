"""z = W f + b: the head of a classifier, and what it is given, f: the last tokens, normed and pooled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from odevit.core.modeling_odevit import OdeViTModel
from odevit.core.pooling import ClsPooling, MeanPooling
from odevit.surgery.block_locator import BlockLocator
from odevit.tokens import TokenLayout, Tokens

HEAD_NAMES = {"classifier", "head", "cls_classifier", "distillation_classifier"}
"""What the heads of the models we know are called."""


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the classification head."""
    return bool(HEAD_NAMES & set(name.split(".")))


def head_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model's classification head."""
    weights = [parameter for name, parameter in model.named_parameters() if is_head(name)]
    if not weights:
        raise ValueError(
            f"{type(model).__name__} has no part called {' or '.join(sorted(HEAD_NAMES))}, so its head was not found; "
            "leave it frozen (objective.unfreeze_head=false)"
        )
    return weights


def linear_heads(model: nn.Module, place: BlockLocator, labels: int | None) -> list[nn.Linear]:
    """The linear maps beside a model's blocks with one output for each of its classes, whatever they are called."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == labels and not name.startswith(f"{place.name}.")
    ]


@contextmanager
def capture_head_inputs(heads: list[nn.Linear]) -> Iterator[list[Tensor]]:
    """A context in which whatever the heads are given, [batch, channel] each, is kept."""
    given: list[Tensor] = []

    def listen(_: nn.Module, args: tuple[Any, ...]) -> None:
        given.append(args[0])

    with ExitStack() as hooks:
        for head in heads:
            hooks.callback(head.register_forward_pre_hook(listen).remove)
        yield given


def readout_weights_of(model: nn.Module, state: Tokens, layout: TokenLayout) -> tuple[Tensor, str]:
    """w [batch, token], how much each token counts for the head of any ViT, and the name of that pooling.

    An encoder of this library knows its pooling; for others it is CLS, or the mean of the patches without one.
    """
    encoder = next((module for module in model.modules() if isinstance(module, OdeViTModel)), None)
    if encoder is not None:
        return encoder.pooling.weights(encoder.norm(state), layout), encoder.pooling.query
    pooling = (ClsPooling if layout.has_cls else MeanPooling)(state.shape[-1])
    return pooling.weights(state, layout), pooling.query
