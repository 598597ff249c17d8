"""logits = head(vit(image)): a pretrained ViT learns the classes of other data, with its head alone or as a whole.

As a whole, layer l of L learns at lr d^(L - l), after a phase that trains the new head alone: a random head would send
random gradients into the pretrained weights.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForImageClassification,
    PreTrainedModel,
    ViTImageProcessorPil,
    set_seed,
)
from transformers.image_processing_utils import BaseImageProcessor

from odevit.data.class_names import match_class_names
from odevit.data.images import DataSet
from odevit.distill.teacher import Teacher
from odevit.hf.processor import PixelStatistics
from odevit.surgery.block_locator import find_blocks, head_parameters, is_head, linear_heads
from odevit.surgery.plain_vit import ViTWrapper
from odevit.surgery.vit_spec import VitSpec
from odevit.tokens import Pixels
from odevit.train.loss import BatchLoss
from odevit.train.recipe import Recipe, TrainRecipe
from odevit.train.runner import run
from odevit.train.schedule import SchedulePhase
from odevit.train.splits import label_names, read_data
from odevit.train.task import Task
from odevit.train.trainer import FrozenUntil

HEAD = "head"
"""The name of the phase in which only the head is trained."""


def train_pretrained(recipe: Recipe, command: str = "") -> Path:
    """Train a pretrained ViT on labels, with its head alone or as a whole, and give back its folder."""
    return run(PretrainedTask(recipe), command)


class Pretrained(ViTWrapper):
    """A pretrained classifier in training. With `head_only` the rest stays frozen, in evaluation mode."""

    accepts_loss_kwargs = False

    def __init__(
        self,
        model: PreTrainedModel,
        vit_spec: VitSpec,
        processor: BaseImageProcessor | None,
        statistics: PixelStatistics,
        *,
        head_only: bool,
    ) -> None:
        super().__init__(model, vit_spec, processor, statistics)
        self.head_only = head_only
        head = head_parameters(model)
        model.requires_grad_(not head_only)
        for parameter in head:
            parameter.requires_grad_(True)

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode and not self.head_only)
        self.training = mode
        return self

    def forward(self, pixel_values: Pixels, labels: Tensor | None = None, **options: Any) -> Any:
        """The loss of a batch with labels; the output of a `ViTWrapper` without."""
        output: Any = super().forward(pixel_values, **options)
        return output if labels is None else BatchLoss(F.cross_entropy(output.logits.float(), labels))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the classifier with its image processor, or with one for the pixels that it was trained on."""
        self.model.save_pretrained(folder)
        # Nothing in such a folder needs odevit, so a new processor is one of transformers.
        processor = self.processor or ViTImageProcessorPil.from_dict(self.image_processor.to_dict())
        processor.save_pretrained(folder)


class PretrainedTask(Task[Recipe]):
    """A pretrained ViT with a new head, trained on labels."""

    card: ClassVar[str] = "distill/pretrained.md.j2"

    network: Pretrained

    def build(self) -> None:
        recipe = self.recipe
        pretrained = Teacher(recipe.teacher)
        self.data = data = pretrained.normalize(read_data(recipe, pretrained.input_format))
        set_seed(recipe.seed)
        model = load_classifier(recipe.teacher, data).float()
        if match_class_names(data.classes, pretrained.classes) != list(range(len(pretrained.classes))):
            # A head of as many classes was loaded, but they are other classes: W ~ N(0, 0.02^2), b = 0.
            for head in linear_heads(model, find_blocks(model), data.num_classes):
                nn.init.trunc_normal_(head.weight, std=0.02)
                if head.bias is not None:
                    nn.init.zeros_(head.bias)
        vit_spec = replace(pretrained.vit_spec, labels=data.num_classes)
        if recipe.train.checkpointing:
            model.gradient_checkpointing_enable()
        statistics = PixelStatistics(data.mean, data.std)
        self.network = Pretrained(model, vit_spec, pretrained.processor, statistics, head_only=recipe.head_only)
        if recipe.train.head_first and not recipe.head_only:
            self.phases = head_first_schedule(recipe.train)
            self.callbacks = [self.body]
        self._make_batches(data)

    @cached_property
    def body(self) -> FrozenUntil:
        """The weights below the head, which are frozen in the first phase."""
        return FrozenUntil(weight for name, weight in self.network.named_parameters() if not is_head(name))

    def before_step(self, progress: float, part: SchedulePhase | None) -> None:
        if part is not None:
            self.body.frozen = part.name == HEAD

    def rate_of(self, name: str) -> float:
        """d^(L - l): 1 for the last layer, the final norm and the head, smallest for the embedding."""
        layers, decay = self.network.solver_config.steps, self.recipe.train.layer_decay
        return 1.0 if is_head(name) else decay ** (layers - self.layer_of[name])

    @cached_property
    def layer_of(self) -> dict[str, int]:
        """The layer of each weight: 0 before the first block, l in block l, L after the last block."""
        network, layers = self.network, self.network.solver_config.steps
        # Looked up in the trained model: a classifier has its blocks under another name than a model without a head.
        blocks = f"model.{find_blocks(network.model).name}."
        layer_of, layer = {}, 0
        for name, _ in network.named_parameters():
            if name.startswith(blocks):
                # Our own stacked models keep their blocks one name further down.
                layer = 1 + next(int(part) for part in name.removeprefix(blocks).split(".") if part.isdecimal())
            elif layer:
                layer = layers
            layer_of[name] = layer
        return layer_of


def load_classifier(source: str, data: DataSet) -> PreTrainedModel:
    """The classifier of a folder or hub id for the classes of the data; a missing head is initialised randomly."""
    config = AutoConfig.from_pretrained(source, **label_names(data))
    if type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise ValueError(
            f"teacher={source} is a {type(config).__name__.removesuffix('Config')}, for which transformers has no "
            "classifier; expected a ViT that has one, such as ViT or DINOv2. In Python, odevit.get_ode_model takes any"
        )
    return AutoModelForImageClassification.from_pretrained(source, config=config, ignore_mismatched_sizes=True)


def head_first_schedule(train: TrainRecipe) -> list[SchedulePhase]:
    """The head alone, then all weights with a new warm-up, because the body has not been trained yet."""
    rates, share = (train.learning_rate, train.muon_learning_rate, train.warmup), train.head_first
    parts = [
        SchedulePhase(HEAD, share, share, *rates, kind=0, final_rate=1.0),
        SchedulePhase("whole", 1.0 - share, 1.0, *rates, kind=1),
    ]
    return [part for part in parts if part.share > 0]
