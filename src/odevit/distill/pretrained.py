"""logits = head(vit(image)): a pretrained ViT learns the classes of other data, with its head alone or as a whole.

As a whole, layer l of L learns at lr d^(L - l), and only once the new head knows what to ask of the layers below it: a
random head would send random gradients through weights that are worth keeping.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoModelForImageClassification,
    PreTrainedModel,
    TrainerCallback,
    ViTImageProcessorPil,
    set_seed,
)
from transformers.image_processing_utils import BaseImageProcessor

from odevit.distill.teacher import Teacher
from odevit.model.anatomy import Anatomy
from odevit.model.head import head_parameters, is_head
from odevit.model.ordinary import OrdinaryViT
from odevit.model.processor import PixelStatistics
from odevit.solver import Way
from odevit.tokens import Pixels
from odevit.train.life import run
from odevit.train.loss import BatchLoss
from odevit.train.recipe import Recipe, TrainRecipe
from odevit.train.schedule import Part
from odevit.train.splits import label_names, read_data
from odevit.train.task import Task

HEAD = "head"
"""The part of a training in which only the head moves."""


def train_pretrained(recipe: Recipe, command: str = "") -> Path:
    """Train a pretrained ViT on labels, with its head alone or as a whole, and give back its folder."""
    return run(PretrainedTask(recipe), command)


class Pretrained(OrdinaryViT):
    """A pretrained classifier on its way to other data. With `head_only` the rest stays frozen, in evaluation mode."""

    accepts_loss_kwargs = False

    def __init__(
        self,
        model: PreTrainedModel,
        anatomy: Anatomy,
        processor: BaseImageProcessor | None,
        statistics: PixelStatistics,
        *,
        head_only: bool,
    ) -> None:
        super().__init__(model, anatomy, processor, statistics)
        self.head_only = head_only
        head = head_parameters(model)
        model.requires_grad_(not head_only)
        for parameter in head:
            parameter.requires_grad_(True)

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode and not self.head_only)
        self.training = mode
        return self

    def forward(self, pixel_values: Pixels, labels: Tensor, way: Way | None = None) -> BatchLoss:  # type: ignore[override]
        return BatchLoss(F.cross_entropy(self.ask(pixel_values)[0].float(), labels))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the whole classifier with the image processor it came with, or one of the pixels it has seen."""
        self.model.save_pretrained(folder)
        # Nothing in such a folder needs odevit, so the processor that it had not is named as transformers names it.
        seen = self.processor or ViTImageProcessorPil.from_dict(self.image_processor.to_dict())
        seen.save_pretrained(folder)


class PretrainedTask(Task[Recipe]):
    """A pretrained ViT with a new head, trained on labels."""

    card: ClassVar[str] = "distill/pretrained.md.j2"

    network: Pretrained

    def build(self) -> None:
        recipe = self.recipe
        body = Teacher(recipe.teacher)
        self.data = body.normalised(read_data(recipe, body.pixels))
        set_seed(recipe.seed)
        model = AutoModelForImageClassification.from_pretrained(
            recipe.teacher, **label_names(self.data), ignore_mismatched_sizes=True
        ).float()
        anatomy = replace(body.anatomy, labels=self.data.num_classes)
        statistics = PixelStatistics(self.data.mean, self.data.std)
        self.network = Pretrained(model, anatomy, body.processor, statistics, head_only=recipe.head_only)
        self.blocks = f"model.{body.anatomy.where.name}."
        if recipe.train.head_first and not recipe.head_only:
            self.phases = head_then_whole(recipe.train)
            self.callbacks = [self.body]
        self.make_batches(self.data)

    @cached_property
    def body(self) -> BodyHeld:
        """What is below the head."""
        return BodyHeld(self.network)

    def enter(self, progress: float, part: Part | None) -> None:
        if part is not None:
            self.body.held = part.name == HEAD

    def rate_of(self, name: str) -> float:
        """d^(L - l): 1 for the last layer, the final norm and the head, least for what comes before the first layer."""
        if is_head(name):
            return 1.0
        layers, decay = self.network.way.steps, self.recipe.train.layer_decay
        if name.startswith(self.blocks):
            # Our own stacked models keep their blocks one name further down.
            number = next(int(part) for part in name.removeprefix(self.blocks).split(".") if part.isdecimal())
            return decay ** (layers - 1 - number)
        return decay**layers if "embed" in name else 1.0


def head_then_whole(train: TrainRecipe) -> list[Part]:
    """The head alone at its full rate, then everything, rising once more from 0: the body has not been trained yet."""
    rates, share = (train.learning_rate, train.muon_learning_rate, train.warmup), train.head_first
    parts = [Part(HEAD, share, share, *rates, kind=0, left=1.0), Part("whole", 1.0 - share, 1.0, *rates, kind=1)]
    return [part for part in parts if part.share > 0]


class BodyHeld(TrainerCallback):
    """While it is held, what is below the head gets no update."""

    def __init__(self, network: Pretrained) -> None:
        self.held = False
        self.weights = [parameter for name, parameter in network.named_parameters() if not is_head(name)]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.held:
            for weight in self.weights:
                weight.grad = None
