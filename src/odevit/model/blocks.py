"""model -> the place of its blocks: a table of known architectures, and a search by structure for the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from odevit.depth import StackedDepth
from odevit.model.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.solver import Save, Solution
from odevit.tokens import AttentionMap, Tokens

KNOWN_PLACES = {
    # model_type: names of the list of blocks, as this and earlier versions of transformers have it
    "vit": ("layers", "encoder.layer"),
    "deit": ("layers", "encoder.layer"),
    "dinov2": ("encoder.layer", "layers"),
    "dinov2_with_registers": ("encoder.layer", "layers"),
    "dinov3_vit": ("model.layer", "layer"),
    "clip_vision_model": ("encoder.layers",),
    "clip": ("vision_model.encoder.layers",),
    "siglip_vision_model": ("encoder.layers",),
    "siglip": ("vision_model.encoder.layers",),
}


@dataclass
class Trail:
    """What was seen of one pass through the blocks: h_0, ..., h_L, and how the blocks answer."""

    states: list[Tokens] = field(default_factory=list)
    attentions: tuple[AttentionMap, ...] = ()
    as_tuple: bool = False


@dataclass(frozen=True)
class Place(ABC):
    """Where the blocks of a model stand and how they are called.

    Args:
        name: the module that is replaced, by its dotted name.
        as_tuple: whether a block answers with a tuple.
    """

    name: str
    as_tuple: bool = False

    @abstractmethod
    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks, in their order."""

    @abstractmethod
    def watched(self, model: nn.Module) -> AbstractContextManager[Trail]:
        """A context in which passes through the blocks leave a `Trail`."""

    def install(self, model: nn.Module, module: nn.Module) -> None:
        """Put a module into this place, for good."""
        parent, _, leaf = self.name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, module)


class BlockList(Place):
    """x = block(x, ...) for each block of an nn.ModuleList or nn.Sequential: Hugging Face's models and timm's."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.get_submodule(self.name).children())

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[Trail]:
        trail = Trail()

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trail.states[:] = [args[0] if args else kwargs["hidden_states"]]

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            trail.as_tuple = isinstance(output, tuple)
            trail.states.append(output[0] if isinstance(output, tuple) else output)

        blocks = self.blocks(model)
        with ExitStack() as hooks:
            hooks.callback(blocks[0].register_forward_pre_hook(before, with_kwargs=True).remove)
            for block in blocks:
                hooks.callback(block.register_forward_hook(after).remove)
            yield trail


class StackedPlace(Place):
    """The `depth` of our own stacked model, which answers with a `Solution`."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(cast(StackedDepth, model.get_submodule(self.name)).layers)

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[Trail]:
        trail = Trail()

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, kwargs | {"save": replace(Save.parse(kwargs.get("save")), steps="all")}

        def after(_: nn.Module, args: tuple[Any, ...], solution: Solution) -> None:
            trail.states[:] = solution.states
            trail.attentions = solution.attentions

        depth = model.get_submodule(self.name)
        with ExitStack() as hooks:
            hooks.callback(depth.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(depth.register_forward_hook(after).remove)
            yield trail


class Candidate(NamedTuple):
    """A list of modules in a model."""

    name: str
    kind: str
    length: int
    uniform: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.length} x {self.kind})"


def find_place(model: nn.Module) -> Place:
    """Where the blocks of `model` stand. Nothing found, or more than one thing, is a ValueError with the candidates."""
    if isinstance(model, OdeViTModel | OdeViTForImageClassification):
        encoder = model.odevit if isinstance(model, OdeViTForImageClassification) else model
        if not isinstance(encoder.depth, StackedDepth):
            raise ValueError(
                f"this model has depth={encoder.config.depth!r}: it is an equation already and has no blocks; "
                "expected depth='stacked'"
            )
        return StackedPlace("depth" if encoder is model else "odevit.depth")

    lists = _lists(model)
    known = KNOWN_PLACES.get(str(getattr(getattr(model, "config", None), "model_type", "")), ())
    for place in known:
        fitting = [one for one in lists if one.uniform and f".{one.name}".endswith(f".{place}")]
        if len(fitting) == 1:
            return BlockList(fitting[0].name)

    named = [one for one in lists if one.uniform and _sounds_like_blocks(one.name)]
    # A list within a block of another list is a part of a block, not a list of blocks.
    outer = [one for one in named if not any(one.name.startswith(f"{other.name}.") for other in named)]
    if len(outer) == 1:
        return BlockList(outer[0].name)
    what = "has no list of equal blocks" if not outer else f"has {len(outer)} lists that could be its blocks"
    listed = ", ".join(str(one) for one in (outer or lists)[:20]) or "none"
    raise ValueError(
        f"{type(model).__name__} {what}; expected one nn.ModuleList or nn.Sequential of one class of blocks with equal "
        f"shapes whose name contains 'layer' or 'block'. Lists of modules in it: {listed}"
    )


def _sounds_like_blocks(name: str) -> bool:
    leaf = name.rpartition(".")[2].lower()
    return "layer" in leaf or "block" in leaf


def _lists(model: nn.Module) -> list[Candidate]:
    candidates = []
    for name, module in model.named_modules():
        if not name or not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) == 0:
            continue
        members = list(module)
        kinds = sorted({type(member).__name__ for member in members})
        shapes = {tuple((key, value.shape) for key, value in member.state_dict().items()) for member in members}
        # Stages of different widths are of one class too; a vector field cannot change its width on the way.
        uniform = len(kinds) == 1 and len(shapes) == 1 and _has_norm(members[0])
        candidates.append(Candidate(name, " | ".join(kinds), len(members), uniform))
    return candidates


def _has_norm(block: nn.Module) -> bool:
    """Whether a norm of tokens stands directly in a block; that of a batch is the mark of convolutions."""
    kinds = [type(child) for child in block.children()]
    return any("norm" in kind.__name__.lower() and not issubclass(kind, _BatchNorm) for kind in kinds)
