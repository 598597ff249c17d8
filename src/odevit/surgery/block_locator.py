"""model -> where its blocks stand: found by structure, watched, fed with fewer tokens, replaced."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.core.solution import SaveAt, Solution
from odevit.systems.stacked import StackedDepth
from odevit.tokens import AttentionMap, Tokens


@dataclass
class BlockTrace:
    """What was seen of one pass through the blocks: h_0, ..., h_L, and how the blocks answer."""

    states: list[Tokens] = field(default_factory=list)
    attentions: tuple[AttentionMap, ...] = ()
    positions: Any = None  # what the blocks are handed as `position_embeddings`
    as_tuple: bool = False


@dataclass(frozen=True)
class BlockLocator(ABC):
    """Where the blocks of a model stand, by the dotted name of the module that holds them, and how they are called."""

    name: str

    @abstractmethod
    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks, in their order."""

    @abstractmethod
    def _watch(self, model: nn.Module, trace: BlockTrace) -> list[RemovableHandle]:
        """Hooks that keep the trail."""

    @contextmanager
    def record_states(self, model: nn.Module) -> Iterator[BlockTrace]:
        """A context in which passes through the blocks leave a `Trail`."""
        trace = BlockTrace()
        with ExitStack() as hooks:
            for handle in self._watch(model, trace):
                hooks.callback(handle.remove)
            yield trace

    @abstractmethod
    def entrance(self, model: nn.Module) -> nn.Module:
        """What receives h_0."""

    def install(self, model: nn.Module, module: nn.Module) -> None:
        """Put a module into this place, for good."""
        parent, _, leaf = self.name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, module)


class BlockList(BlockLocator):
    """x = block(x, ...) for each block of an nn.ModuleList or nn.Sequential: Hugging Face's models and timm's."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.get_submodule(self.name).children())

    def entrance(self, model: nn.Module) -> nn.Module:
        return self.blocks(model)[0]

    def _watch(self, model: nn.Module, trace: BlockTrace) -> list[RemovableHandle]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trace.states[:] = [args[0] if args else kwargs["hidden_states"]]
            trace.positions = kwargs.get("position_embeddings")

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            trace.as_tuple = isinstance(output, tuple)
            trace.states.append(output[0] if isinstance(output, tuple) else output)

        blocks = self.blocks(model)
        first = self.entrance(model).register_forward_pre_hook(before, with_kwargs=True)
        return [first, *(block.register_forward_hook(after) for block in blocks)]


class StackedBlocks(BlockLocator):
    """The `depth` of our own stacked model, which answers with a `Solution`."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(cast(StackedDepth, model.get_submodule(self.name)).blocks())

    def entrance(self, model: nn.Module) -> nn.Module:
        return model.get_submodule(self.name)

    def _watch(self, model: nn.Module, trace: BlockTrace) -> list[RemovableHandle]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            x0, request = args
            save = SaveAt.parse(request.save).also(states=True, attentions=False)
            return (x0, replace(request, save=save)), kwargs

        def after(_: nn.Module, args: tuple[Any, ...], solution: Solution) -> None:
            trace.states[:] = solution.states
            trace.attentions = solution.attentions

        depth = self.entrance(model)
        return [depth.register_forward_pre_hook(before, with_kwargs=True), depth.register_forward_hook(after)]


def find_blocks(model: nn.Module) -> BlockLocator:
    """Where the blocks of `model` stand. Nothing found, or more than one thing, is a ValueError with the candidates."""
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
            # Stages of different widths are of one class too; a vector field cannot change its width on the way.
            if len(kinds) == 1 and len(shapes) == 1 and _has_norm(module[0]):
                uniform.append(name)

    named = [name for name in uniform if re.search("layer|block", name.rpartition(".")[2].lower())]
    # A list within a block of another list is a part of a block, not a list of blocks.
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
    """Whether a norm of tokens stands directly in a block; that of a batch is the mark of convolutions."""
    kinds = [type(child) for child in block.children()]
    return any("norm" in kind.__name__.lower() and not issubclass(kind, _BatchNorm) for kind in kinds)
