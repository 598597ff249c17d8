"""h_0, h_1, ..., h_L: a frozen ViT and its hidden states."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor

from odevit.analysis.attention import AttentionPath, attention_path
from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import SolverConfig
from odevit.data.class_names import align_classes
from odevit.data.images import DataSet
from odevit.errors import ConfigError
from odevit.hf.processor import PixelStatistics, find_processor, statistics_of
from odevit.surgery.encoder import BlockBridge, DepthBridge
from odevit.surgery.head import readout_weights_of
from odevit.surgery.serialization import load_vit
from odevit.surgery.vit_spec import fit_to_processor, inspect_vit, parse_output
from odevit.surgery.vit_wrapper import BlockStack
from odevit.tokens import AttentionMap, Logits, Pixels, TokenLayout, Tokens

GIVE_A_HEAD = "train a head for this data first: odevit train teacher=TEACHER head_only=true data=DATA"


@dataclass(frozen=True)
class TeacherOutput:
    """What a teacher makes of images.

    Args:
        states: h_0, what the first block receives, and h_1, ..., h_L, what the blocks give, before the final norm.
        logits: of its head; None without one.
        pooled: one vector per image, of a teacher without a head.
        attentions: one map per block, when asked for.
    """

    states: tuple[Tokens, ...]
    logits: Logits | None = None
    pooled: Tensor | None = None
    attentions: tuple[AttentionMap, ...] | None = None


class Teacher(nn.Module):
    """h_0 = embed(image), h_l = block_l(h_{l-1}): a frozen copy of a ViT in evaluation mode, now and for good.

    Args:
        source: a model, its folder, or its hub id.
        image_mean, image_std: pixel statistics it was trained with, when no image processor lies beside it.
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
            _refuse(source)
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
        self.pixel_statistics = _agreed(own, image_mean, image_std)

    @property
    def num_layers(self) -> int:
        """L."""
        return self.vit_spec.blocks

    @property
    def width(self) -> int:
        """D of its tokens."""
        return self.vit_spec.width

    @property
    def classes(self) -> list[str]:
        """The names of its classes, in the order of its logits; none without a head."""
        names = getattr(getattr(self.model, "config", None), "id2label", None) or {}
        return [str(names.get(number, f"LABEL_{number}")) for number in range(self.vit_spec.labels or 0)]

    @property
    def square_size(self) -> int:
        """Height and width of its images, which data are read at."""
        height, width = self.vit_spec.size
        if height != width:
            raise ValueError(f"the teacher takes {height}x{width} images; expected square ones")
        return height

    @property
    def pixels(self) -> int | BaseImageProcessor:
        """How data are read for it: by its own image processor, or at its size where it has none."""
        side = self.square_size  # asked of both: pictures are cut square
        return self.processor or side

    def normalised(self, data: DataSet) -> DataSet:
        """The data with the teacher's pixel statistics, where they are known: it sees what it was trained on."""
        own = self.pixel_statistics
        return data if own is None else replace(data, mean=own.mean, std=own.std)

    @torch.no_grad()
    def forward(self, pixel_values: Pixels, attentions: bool = False) -> TeacherOutput:
        """Its states and its answer for normalised images; with `attentions`, which cost the fused kernel, its maps."""
        # Without gradients, but no inference mode: a student's loss keeps these tensors for its backward pass.
        if attentions and not isinstance(self.model, PreTrainedModel):
            raise ValueError(f"attentions=True, but a {type(self.model).__name__} does not give its maps; leave it out")
        asked = {"output_attentions": True} if attentions else {}
        with self.vit_spec.locator.record_states(self.model) as trace, _written_out(self.model, attentions):
            output = self.model(pixel_values, **asked)
        answer = parse_output(self.model, output)
        maps = self._maps(output) if attentions else None
        return TeacherOutput(tuple(trace.states), answer.logits, answer.pooled, maps)

    def states(self, pixel_values: Pixels) -> tuple[Tokens, ...]:
        """h_0, ..., h_L."""
        return self(pixel_values).states

    def logits(self, pixel_values: Pixels) -> Logits:
        """The answer of its head."""
        return self.ask(pixel_values)[0]

    def ask(self, pixels: Pixels, solver_config: SolverConfig | None = None, **options: Any) -> tuple[Logits, Solution]:
        """Its logits, and its layers as if they were a trajectory; there is no way to choose."""
        BlockStack(self.num_layers).check(solver_config=solver_config, **options)
        output, layers = self(pixels), self.num_layers
        if output.logits is None:
            raise ValueError(self._headless())
        times = tuple(float(layer) for layer in range(layers + 1))
        stats = Stats(nfe=layers, steps=layers)
        return output.logits, Solution(output.states[-1], float(layers), stats, output.states, times)

    def layout(self, pixel_values: Pixels | None = None) -> TokenLayout:
        """Where CLS, patches and registers stand; for its own image size unless images are given."""
        if pixel_values is None:
            return self.vit_spec.layout(self.model)
        height, width = pixel_values.shape[-2:]
        return self.vit_spec.layout(self.model, (height, width))

    def check_pixels(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Refuse data that was normalised in another way than the teacher's; silent when that is unknown."""
        own, given = self.pixel_statistics, PixelStatistics(tuple(mean), tuple(std))
        if own is not None and not own.near(given):
            raise ValueError(
                f"the data is normalised with mean={_short(given.mean)} std={_short(given.std)}, the teacher was "
                f"trained with mean={_short(own.mean)} std={_short(own.std)}; normalise the data as the teacher wants "
                f"it: mean={list(own.mean)}, std={list(own.std)}"
            )

    def numbered(self, data: DataSet) -> DataSet:
        """The data with its classes numbered as the teacher's head numbers them; one it does not know is refused."""
        if self.vit_spec.labels is None:
            raise ValueError(self._headless())
        return align_classes(data, self.classes, "the teacher", GIVE_A_HEAD)

    def compile_blocks(self, compiled: bool = True) -> None:
        """Compile every block, or no longer; what is watched is seen all the same."""
        for block in self.vit_spec.locator.blocks(self.model):
            # Its forward and not the block: hooks stay outside of the graph, which all blocks of a class share.
            vars(block).pop("forward", None)
            if compiled:
                # dynamic=False: few shapes come, each of them for long.
                block.forward = torch.compile(block.forward, dynamic=False)

    def train(self, mode: bool = True) -> Teacher:
        """A teacher does not train: it stays in evaluation mode."""
        return super().train(False)

    def _headless(self) -> str:
        return (
            f"the teacher is a {type(self.model).__name__} without a classification head; pass its "
            f"...ForImageClassification, or {GIVE_A_HEAD}"
        )

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
    """a of each layer of a teacher; the layers 1, ..., L stand in the place of time."""
    output, layout = teacher(pixels, attentions=True), teacher.layout(pixels)
    assert output.attentions is not None  # asked for
    layers = range(1, teacher.num_layers + 1)
    loading_errors = partial(readout_weights_of, teacher.model, layout=layout)
    return attention_path(layers, output.states[:-1], output.attentions, layout, loading_errors)


@contextmanager
def _written_out(model: Any, wanted: bool) -> Iterator[None]:
    """In this block attention makes its maps, if wanted; the fused one of transformers would silently give none."""
    if not wanted or isinstance(model, OdeViTModel | OdeViTForImageClassification):
        yield
        return
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before or "sdpa")


def _refuse(model: nn.Module) -> None:
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


def _agreed(
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
