"""h_0, h_1, ..., h_L: a frozen ViT, its hidden states, and where the teacher of a run is found."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor

from odevit.analysis.attention import AttentionPath, attention_path
from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.core.solution import Solution, Stats
from odevit.data.class_names import align_classes
from odevit.data.images import DataSet
from odevit.errors import ConfigError
from odevit.hf.processor import PixelStatistics, find_processor, statistics_of
from odevit.surgery.block_locator import readout_weights_of
from odevit.surgery.encoder import BlockBridge, DepthBridge
from odevit.surgery.plain_vit import BlockStack, load_vit
from odevit.surgery.vit_spec import fit_to_processor, inspect_vit, parse_output
from odevit.tokens import AttentionMap, Logits, Pixels, TokenLayout, Tokens

TRAIN_A_HEAD = "train a head for this data first: odevit train teacher=TEACHER head_only=true data=DATA"


@dataclass(frozen=True)
class TeacherOutput:
    """The output of a teacher for a batch of images.

    Args:
        states: h_0, the input of the first block, and h_1, ..., h_L, the outputs of the blocks, before the final norm.
        logits: of its head; None without one.
        pooled: one vector per image, of a teacher without a head.
        attentions: one map per block, when asked for.
    """

    states: tuple[Tokens, ...]
    logits: Logits | None = None
    pooled: Tensor | None = None
    attentions: tuple[AttentionMap, ...] | None = None

    @property
    def trajectory(self) -> Solution:
        """The layers as a trajectory: layer l at time l, one evaluation each."""
        layers = len(self.states) - 1
        times = tuple(float(layer) for layer in range(layers + 1))
        return Solution(self.states[-1], float(layers), Stats(nfe=layers, steps=layers), self.states, times)


class Teacher(nn.Module):
    """h_0 = embed(image), h_l = block_l(h_{l-1}): a frozen copy of a ViT, always in evaluation mode.

    Args:
        source: a model, its folder, or its hub id.
        image_mean, image_std: pixel statistics it was trained with, when it has no image processor.
    """

    def __init__(
        self,
        source: nn.Module | str | Path,
        *,
        image_mean: Sequence[float] | None = None,
        image_std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(source, nn.Module):
            _check_model(source)
            model = copy.deepcopy(source)
            folder = str(getattr(source, "name_or_path", ""))
        else:
            model, folder = load_vit(source), str(source)
        self.model = model.eval().requires_grad_(False)
        self.training = False
        try:
            vit_spec = inspect_vit(self.model)
        except ValueError as error:
            raise ValueError(
                f"a teacher without hidden states: {error}. Choose a Vision Transformer: ViT, DeiT, DINO, CLIP, "
                "SigLIP, one of timm's, or our own with depth='stacked'"
            ) from error
        self.processor = find_processor(folder, self.model, download=not isinstance(source, nn.Module))
        self.vit_spec = fit_to_processor(vit_spec, self.model, self.processor)
        own = None if self.processor is None else statistics_of(self.processor)
        self.pixel_statistics = _check_statistics(own, image_mean, image_std)

    @property
    def num_layers(self) -> int:
        """L."""
        return self.vit_spec.blocks

    @property
    def classes(self) -> list[str]:
        """The names of its classes, in the order of its logits; empty without a head."""
        names = getattr(getattr(self.model, "config", None), "id2label", None) or {}
        return [str(names.get(number, f"LABEL_{number}")) for number in range(self.vit_spec.labels or 0)]

    @property
    def input_format(self) -> int | BaseImageProcessor:
        """What `read_data` needs to make images for it: its image processor, or its image size without one."""
        height, width = self.vit_spec.size
        if height != width:
            raise ValueError(f"the teacher takes {height}x{width} images; expected square ones")
        return self.processor or height

    def normalize(self, data: DataSet) -> DataSet:
        """The data with the pixel statistics that the teacher was trained with, where they are known."""
        own = self.pixel_statistics
        return data if own is None else replace(data, mean=own.mean, std=own.std)

    def match_classes(self, data: DataSet) -> DataSet:
        """The data with its classes in the order of the teacher's logits; an error for classes the head lacks."""
        if self.vit_spec.labels is None:
            raise ValueError(
                f"the teacher is a {type(self.model).__name__} without a classification head; pass its "
                f"...ForImageClassification, or {TRAIN_A_HEAD}"
            )
        return align_classes(data, self.classes, "the teacher", TRAIN_A_HEAD)

    @torch.no_grad()
    def forward(
        self,
        pixel_values: Pixels,
        *,
        attentions: bool = False,
        on_failure: str | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> TeacherOutput:
        """States, logits and, with `attentions`, attention maps of normalised images.

        Attention maps need eager instead of fused attention. Called with the arguments of any other model, it refuses
        `options` that need a solver; `on_failure` and `return_dict` have no effect.
        """
        BlockStack(self.num_layers).check(**options)
        # No inference mode: a student's loss keeps these tensors for its backward pass.
        if attentions and not isinstance(self.model, PreTrainedModel):
            raise ValueError(f"attentions=True, but a {type(self.model).__name__} does not give its maps; leave it out")
        requested = {"output_attentions": True} if attentions else {}
        with self.vit_spec.locator.record_states(self.model) as trace, _eager_attention(self.model, attentions):
            output = self.model(pixel_values, **requested)
        parsed = parse_output(self.model, output)
        maps = self._maps(output) if attentions else None
        return TeacherOutput(tuple(trace.states), parsed.logits, parsed.pooled, maps)

    def states(self, pixel_values: Pixels) -> tuple[Tokens, ...]:
        """h_0, ..., h_L."""
        return self(pixel_values).states

    def layout(self, pixel_values: Pixels | None = None) -> TokenLayout:
        """Where CLS, patches and registers stand; for its own image size unless images are given."""
        if pixel_values is None:
            return self.vit_spec.layout(self.model)
        height, width = pixel_values.shape[-2:]
        return self.vit_spec.layout(self.model, (height, width))

    def check_pixels(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Refuse data that was normalised otherwise than the teacher's; unknown statistics are not checked."""
        own, given = self.pixel_statistics, PixelStatistics(tuple(mean), tuple(std))
        if own is not None and not own.near(given):
            raise ValueError(
                f"the data is normalised with mean={_short(given.mean)} std={_short(given.std)}, the teacher was "
                f"trained with mean={_short(own.mean)} std={_short(own.std)}; normalise the data as the teacher wants "
                f"it: mean={list(own.mean)}, std={list(own.std)}"
            )

    def compile_blocks(self, compiled: bool = True) -> None:
        """Compile every block, or undo it with `compiled=False`; hooks on the blocks still run."""
        for block in self.vit_spec.locator.blocks(self.model):
            # Its forward and not the block: hooks stay outside of the graph, which all blocks of one class share.
            vars(block).pop("forward", None)
            if compiled:
                # dynamic=False: few shapes occur, each of them often.
                block.forward = torch.compile(block.forward, dynamic=False)

    def train(self, mode: bool = True) -> Teacher:
        """Stay in evaluation mode: a teacher is never trained."""
        return super().train(False)

    def _maps(self, output: Any) -> tuple[AttentionMap, ...]:
        maps = tuple(getattr(output, "attentions", None) or ())
        if len(maps) != self.num_layers:
            raise ValueError(
                f"attentions=True, but {type(self.model).__name__} gave {len(maps)} maps for {self.num_layers} blocks; "
                "leave it out, or take a teacher whose attention can be written out"
            )
        return maps


@torch.no_grad()
def attention_over_layers(teacher: Teacher, pixels: Pixels) -> AttentionPath:
    """Attention of each layer of a teacher, with the layers 1, ..., L as times."""
    output, layout = teacher(pixels, attentions=True), teacher.layout(pixels)
    assert output.attentions is not None  # asked for
    layers = range(1, teacher.num_layers + 1)
    weights = partial(readout_weights_of, teacher.model, layout=layout)
    return attention_path(layers, output.states[:-1], output.attentions, layout, weights)


def load_teacher(run: str | os.PathLike[str]) -> Teacher | None:
    """The teacher of a distilled student: RUN/teacher, or the one that RUN/recipe.yaml names.

    None for a run without a teacher, or with one that is not on this machine; nothing is downloaded.
    """
    source = find_teacher_source(run)
    return None if source is None else Teacher(source)


def find_teacher_source(run: str | os.PathLike[str]) -> str | None:
    """The folder or hub id of the teacher that `load_teacher` would load, or None."""
    from odevit.train.folder import read_recipe  # imports the Trainer, which takes a second

    folder = Path(run)
    if (folder / "teacher/config.json").is_file():
        return str(folder / "teacher")
    # Only a distillation has an alignment; the recipe of a classifier may name a teacher for its head alone.
    settings = read_recipe(run)
    source = settings.get("teacher") if "alignment" in settings else None
    return str(source) if source and _is_local(source) else None


def _is_local(source: str) -> bool:
    """Whether a model is in a folder or in the hub's cache."""
    if Path(source).is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except ValueError:  # neither a folder nor a valid hub id
        return False


@contextmanager
def _eager_attention(model: Any, enabled: bool) -> Iterator[None]:
    """A context with eager attention, which gives its maps; the fused one of transformers would silently give none."""
    if not enabled or isinstance(model, OdeViTModel | OdeViTForImageClassification):
        yield
        return
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before or "sdpa")


def _check_model(model: nn.Module) -> None:
    problems = []
    if any(module.training for module in model.modules()):
        problems.append(
            "it is in training mode, where dropout and batch statistics would change its answers; "
            "call teacher.eval() first"
        )
    if any(isinstance(module, BlockBridge | DepthBridge) for module in model.modules()):
        problems.append("its blocks were replaced by an equation; call .unload() and pass what it gives")
    if problems:
        raise ConfigError(f"the teacher, a {type(model).__name__},", problems)


def _check_statistics(
    own: PixelStatistics | None, mean: Sequence[float] | None, std: Sequence[float] | None
) -> PixelStatistics | None:
    """The statistics found beside the model, or those given; two different ones are an error."""
    if (mean is None) != (std is None):
        raise ValueError(f"image_mean={mean} and image_std={std}; expected both or none")
    if mean is None or std is None:
        return own
    given = PixelStatistics(tuple(mean), tuple(std))
    if own is not None and not own.near(given):
        raise ValueError(
            f"image_mean={_short(given.mean)} image_std={_short(given.std)} were given, the image processor of the "
            f"teacher says mean={_short(own.mean)} std={_short(own.std)}; leave them out, or correct its "
            "preprocessor_config.json"
        )
    return own or given


def _short(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
