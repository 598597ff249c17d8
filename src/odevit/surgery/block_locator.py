"""model -> where its blocks and its head are: found by structure, recorded, replaced."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.core.pooling import ClsPooling, MeanPooling
from odevit.core.solution import SaveAt, Solution
from odevit.systems.stacked import StackedDepth
from odevit.tokens import AttentionMap, TokenLayout, Tokens


@dataclass
class BlockTrace:
    """What `record_states` records of one pass through the blocks."""

    states: list[Tokens] = field(default_factory=list)  # h_0, ..., h_L
    attentions: tuple[AttentionMap, ...] = ()
    positions: Any = None  # the argument `position_embeddings` of the blocks
    as_tuple: bool = False  # whether a block returns a tuple


@dataclass(frozen=True)
class BlockLocator(ABC):
    """Where the blocks of a model are, by the dotted name of the module that holds them, and how they are called."""

    name: str

    @abstractmethod
    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks, in their order."""

    @abstractmethod
    def _add_hooks(self, model: nn.Module, trace: BlockTrace) -> list[RemovableHandle]:
        """Hooks that fill the trace."""

    @contextmanager
    def record_states(self, model: nn.Module) -> Iterator[BlockTrace]:
        """A context in which a pass through the blocks is recorded."""
        trace = BlockTrace()
        with ExitStack() as hooks:
            for handle in self._add_hooks(model, trace):
                hooks.callback(handle.remove)
            yield trace

    def install(self, model: nn.Module, module: nn.Module) -> None:
        """Replace the blocks by a module."""
        parent, _, leaf = self.name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, module)


class BlockList(BlockLocator):
    """x = block(x, ...) for each block of an nn.ModuleList or nn.Sequential: models of transformers and timm."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.get_submodule(self.name).children())

    def _add_hooks(self, model: nn.Module, trace: BlockTrace) -> list[RemovableHandle]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trace.states[:] = [args[0] if args else kwargs["hidden_states"]]
            trace.positions = kwargs.get("position_embeddings")

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            trace.as_tuple = isinstance(output, tuple)
            trace.states.append(output[0] if isinstance(output, tuple) else output)

        blocks = self.blocks(model)
        first = blocks[0].register_forward_pre_hook(before, with_kwargs=True)
        return [first, *(block.register_forward_hook(after) for block in blocks)]


class StackedBlocks(BlockLocator):
    """The `depth` of our own stacked model, which returns a `Solution`."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(cast(StackedDepth, model.get_submodule(self.name)).blocks())

    def _add_hooks(self, model: nn.Module, trace: BlockTrace) -> list[RemovableHandle]:
        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x0, request = args
            return x0, replace(request, save=SaveAt.parse(request.save).also(states=True, attentions=False))

        def after(_: nn.Module, args: tuple[Any, ...], solution: Solution) -> None:
            trace.states[:] = solution.states
            trace.attentions = solution.attentions

        depth = model.get_submodule(self.name)
        return [depth.register_forward_pre_hook(before), depth.register_forward_hook(after)]


def find_blocks(model: nn.Module) -> BlockLocator:
    """The locator of a model's blocks. No candidate, or more than one, is a ValueError that lists them."""
    if isinstance(model, OdeViTModel | OdeViTForImageClassification):
        encoder = model.odevit if isinstance(model, OdeViTForImageClassification) else model
        if not isinstance(encoder.depth, StackedDepth):
            what = "an equation already" if encoder.depth.has_trajectory else encoder.depth.describe()
            raise ValueError(
                f"this model has depth={encoder.config.depth!r}: it is {what} and has no stack of blocks; "
                "expected depth='stacked'"
            )
        return StackedBlocks("depth" if encoder is model else "odevit.depth")

    described, uniform = {}, []
    for name, module in model.named_modules():
        if name and isinstance(module, nn.ModuleList | nn.Sequential) and len(module):
            kinds = sorted({type(member).__name__ for member in module})
            shapes = {tuple((key, value.shape) for key, value in member.state_dict().items()) for member in module}
            described[name] = f"{name} ({len(module)} x {' | '.join(kinds)})"
            # Stages of different widths are of one class too, but a vector field has one width.
            if len(kinds) == 1 and len(shapes) == 1 and _has_norm(module[0]):
                uniform.append(name)

    named = [name for name in uniform if re.search("layer|block", name.rpartition(".")[2].lower())]
    # A list inside a block is a part of that block.
    outer = [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
    if len(outer) == 1:
        return BlockList(outer[0])
    count = f"{len(outer)} lists that could be its blocks" if outer else "no list of equal blocks"
    listed = ", ".join([described[name] for name in outer or described][:20]) or "none"
    raise ValueError(
        f"{type(model).__name__} has {count}; expected one nn.ModuleList or nn.Sequential of one class of blocks with "
        f"equal shapes whose name contains 'layer' or 'block'. Lists of modules in it: {listed}"
    )


def _has_norm(block: nn.Module) -> bool:
    """Whether one of a block's children is a norm of tokens; a batch norm means a block of convolutions."""
    kinds = [type(child) for child in block.children()]
    return any("norm" in kind.__name__.lower() and not issubclass(kind, _BatchNorm) for kind in kinds)


HEAD_NAMES = {"classifier", "head", "cls_classifier", "distillation_classifier"}
"""The names of classification heads in transformers, timm and odevit."""


def is_head(name: str) -> bool:
    """Whether the parameter of this name belongs to the classification head."""
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


def linear_heads(model: nn.Module, locator: BlockLocator, labels: int | None) -> list[nn.Linear]:
    """The linear layers outside a model's blocks with one output for each of its classes, whatever their names."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == labels and not name.startswith(f"{locator.name}.")
    ]


@contextmanager
def capture_head_inputs(heads: list[nn.Linear]) -> Iterator[list[Tensor]]:
    """A context that yields a list of the inputs of the heads, [batch, channel] each."""
    inputs: list[Tensor] = []
    with ExitStack() as hooks:
        for head in heads:
            hooks.callback(head.register_forward_pre_hook(lambda _, args: inputs.append(args[0])).remove)
        yield inputs


def readout_weights_of(model: nn.Module, state: Tokens, layout: TokenLayout) -> tuple[Tensor, str]:
    """w [batch, token], how much each token counts for the head of any ViT, and the name of that pooling.

    An encoder of this library knows its pooling; for others it is CLS, or the mean of the patches without one.
    """
    encoder = next((module for module in model.modules() if isinstance(module, OdeViTModel)), None)
    if encoder is not None:
        return encoder.pooling.weights(encoder.norm(state), layout), encoder.pooling.query
    pooling = (ClsPooling if layout.has_cls else MeanPooling)(state.shape[-1])
    return pooling.weights(state, layout), pooling.query
