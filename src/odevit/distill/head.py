"""logits = W features + b, W and b trained, everything else frozen: how the paper makes its teachers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, PreTrainedModel, set_seed

from odevit.distill.teacher import Teacher
from odevit.model.processor import PROCESSOR
from odevit.solver import Solution, Stats, Way
from odevit.tokens import Logits, Pixels
from odevit.train.life import run
from odevit.train.loss import BatchLoss
from odevit.train.recipe import Recipe
from odevit.train.splits import label_names, read_data
from odevit.train.task import Task

HEAD_NAMES = {"classifier", "head", "cls_classifier", "distillation_classifier"}
"""What the heads of the models we know are called."""


def head_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model's classification head."""
    weights = [parameter for name, parameter in model.named_parameters() if HEAD_NAMES & set(name.split("."))]
    if not weights:
        raise ValueError(
            f"{type(model).__name__} has no part called {' or '.join(sorted(HEAD_NAMES))}, so its head was not found; "
            "leave it frozen (objective.unfreeze_head=false)"
        )
    return weights


class HeadOnly(nn.Module):
    """A classifier of which only the head learns; the rest stays as it is, in evaluation mode."""

    accepts_loss_kwargs = False

    def __init__(self, model: PreTrainedModel, layers: int, processor: dict[str, Any] | None) -> None:
        super().__init__()
        self.model = model
        self.layers = layers
        self.processor = processor
        model.requires_grad_(False)
        for parameter in head_parameters(model):
            parameter.requires_grad_(True)

    def train(self, mode: bool = True) -> HeadOnly:
        super().train(False)
        self.training = mode
        return self

    def ask(self, pixels: Pixels, way: Way | None = None, **_: Any) -> tuple[Logits, Solution]:
        """Its logits; there is no way to choose."""
        logits = self.model(pixels).logits
        # Nothing in between was watched: the answer itself stands for the last state.
        stats = Stats(nfe=self.layers, steps=self.layers)
        return logits, Solution(state=logits, time=float(self.layers), stats=stats)

    def forward(self, pixel_values: Pixels, labels: Tensor, way: Way | None = None) -> BatchLoss:
        return BatchLoss(F.cross_entropy(self.model(pixel_values).logits.float(), labels))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the whole classifier with the image processor it came with."""
        self.model.save_pretrained(folder)
        if self.processor is not None:
            (Path(folder) / PROCESSOR).write_text(json.dumps(self.processor, indent=2, sort_keys=True) + "\n")


class HeadTask(Task[Recipe]):
    """A new head on a pretrained ViT, trained on labels."""

    card: ClassVar[str] = "distill/head.md.j2"

    network: HeadOnly

    def build(self) -> None:
        recipe = self.recipe
        body = Teacher(recipe.teacher)
        self.data = body.normalised(read_data(recipe, body.square_size))
        set_seed(recipe.seed)
        model = AutoModelForImageClassification.from_pretrained(
            recipe.teacher, **label_names(self.data), ignore_mismatched_sizes=True
        )
        self.network = HeadOnly(model, body.num_layers, body.processor)
        self.make_batches(self.data)


def train_head(recipe: Recipe, command: str = "") -> Path:
    """Train a new head on a pretrained ViT, which is otherwise left alone, and give back its folder."""
    return run(HeadTask(recipe), command)
