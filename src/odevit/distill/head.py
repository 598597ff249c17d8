"""logits = W features + b, W and b trained, everything else frozen: how the paper makes its teachers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, PreTrainedModel, set_seed

from odevit.distill.origin import load_model
from odevit.distill.pixels import PROCESSOR, read_processor
from odevit.distill.run import HEADS, count, data_for
from odevit.distill.step import DistillationOutput
from odevit.distill.teacher import Teacher
from odevit.shapes import Pixels
from odevit.solver import Stats
from odevit.train.assemble import assemble, begin, carry_out
from odevit.train.curves import draw_curves
from odevit.train.evaluate import evaluate_batches
from odevit.train.integration import OneWay
from odevit.train.recipe import Recipe
from odevit.train.record import make_record
from odevit.train.run import print_summary
from odevit.train.splits import evaluation_batches, training_batches


class HeadOnly(nn.Module):
    """A classifier of which only the head learns; the rest stays as it is, in evaluation mode."""

    accepts_loss_kwargs = False

    def __init__(self, model: PreTrainedModel, layers: int, processor: dict[str, Any] | None) -> None:
        super().__init__()
        self.model = model
        self.layers = layers
        self.processor = processor
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(bool(HEADS & set(name.split("."))))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def train(self, mode: bool = True) -> HeadOnly:
        super().train(False)
        self.training = mode
        return self

    def forward(self, pixel_values: Pixels, labels: Tensor | None = None, **integration: Any) -> DistillationOutput:
        logits = self.model(pixel_values).logits
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return DistillationOutput(loss=loss, logits=logits, stats=Stats(nfe=self.layers, steps=self.layers))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the whole classifier with the image processor it came with."""
        self.model.save_pretrained(folder)
        if self.processor is not None:
            (Path(folder) / PROCESSOR).write_text(json.dumps(self.processor, indent=2, sort_keys=True) + "\n")


def train_head(recipe: Recipe, command: str = "") -> Path:
    """Train a new head on a pretrained ViT, which is otherwise left alone, and give back its folder."""
    place, folder = begin(recipe), recipe.folder
    main, device = place.rank == 0, place.device
    body = Teacher(recipe.teacher)
    data = data_for(recipe, body)
    set_seed(recipe.seed)
    labels = dict(enumerate(data.classes))
    model = AutoModelForImageClassification.from_pretrained(
        recipe.teacher,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
        ignore_mismatched_sizes=True,
    )
    network = HeadOnly(model, body.num_layers, read_processor(recipe.teacher))
    if main:
        print_summary(network, data, device)
    options = place.options(recipe.train)
    batches = training_batches(data, place.share(recipe.train), recipe.data.augmentation, seed=recipe.seed, **options)
    trainer = assemble(recipe, network, batches, evaluation_batches(data, "validation", **options), OneWay(), place)
    validation = carry_out(recipe, trainer, place)
    if main:
        best = HeadOnly(load_model(folder / "best"), body.num_layers, network.processor).to(device)
        score = evaluate_batches(best, evaluation_batches(data, "test", device=device))
        best.save_pretrained(folder)
        record = make_record(recipe, score, params=count(best), validation=validation, device=device, command=command)
        (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
        draw_curves(folder / "metrics.jsonl", folder / "curves.png", recipe.name)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        shutil.rmtree(folder / "best", ignore_errors=True)
        print(f"test top-1 {score.top1:.2%}  ->  {folder}")
    trainer.accelerator.wait_for_everyone()
    return folder
