"""run, split -> model, teacher, images and one pass over them: computed once for all sections."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.limits import StabilityLimits, combine_limits, measure_limits, measure_limits_along_path
from odevit.analysis.settling import FAR, LargestExponents, measure_exponents
from odevit.analysis.significance import Proportion
from odevit.analysis.sweep import Outcome, horizon_configs, step_configs, sweep
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.data.batches import Batches, make_batches
from odevit.data.images import DataSet
from odevit.distill.alignment import Alignment
from odevit.distill.teacher import Teacher
from odevit.objectives.vectors import norms
from odevit.tokens import Pixels, Tokens

CACHED_STATES = 4 * 2**20
"""Bytes of states in a batch on a CPU: more of them do not fit into its cache."""
BATCHES = (8, 64)
"""The smallest batch on a CPU, which holds all images that figures show, and the largest."""
BATCH_ON_CUDA = 256

Chunk = dict[str, Tensor]
"""`x0` and `labels` of a few images."""


@dataclass(frozen=True)
class Sizes:
    """The number of images for each part; parts without a field here use all of them."""

    accurate: int = 400
    """The solver that is more accurate than the model's own."""
    solvers: int = 150
    """Other solvers, and the grid of horizons by steps."""
    limits: int = 16
    """Eigenvalues, for the stability limits."""
    groups: int = 64
    """Exponents by kind of token."""
    radius: int = 64
    depths: int = 32
    spectrum: int = 8
    lipschitz: int = 8
    approximation: int = 4


@dataclass(frozen=True)
class Sample:
    """Images in random order, so that the first n of them are a random sample as well.

    Args:
        indices: of the images in the split.
        chunks: their embeddings and labels, batch by batch.
        batches: the images in the same batches, normalised with `mean` and `std`.
        classes: the names of the labels.
        available: the number of images in the split.
    """

    indices: Tensor
    chunks: Sequence[Chunk]
    batches: Batches
    classes: tuple[str, ...]
    mean: Sequence[float]
    std: Sequence[float]
    available: int

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def labels(self) -> Tensor:
        """Of all images, on the CPU."""
        return torch.cat([chunk["labels"].cpu() for chunk in self.chunks])

    def first(self, count: int) -> Iterator[Chunk]:
        """The first `count` images, or as many as there are, batch by batch."""
        for chunk in self.chunks:
            if count <= 0:
                return
            yield {name: values[:count] for name, values in chunk.items()}
            count -= len(chunk["labels"])

    def start(self, count: int) -> Tokens:
        """x(0) of the first `count` images, at most one batch."""
        return self.chunks[0]["x0"][:count]

    def names(self, count: int) -> list[str]:
        """The classes of the first `count` images."""
        return [self.classes[label] for label in self.labels[:count].tolist()]

    def pixels(self, count: int) -> Pixels:
        """The first `count` images, normalised, at most one batch."""
        return next(iter(self.batches))["pixel_values"][:count]

    def pictures(self, count: int) -> Tensor:
        """The same images [image, channel, height, width] in 0..1, on the CPU."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (self.pixels(count).cpu() * std + mean).clamp(0, 1)


@torch.no_grad()
def draw_sample(
    model: ImageModel, data: DataSet, split: str, limit: int | None, seed: int, device: torch.device
) -> Sample:
    """`limit` images of a split, or all of them if there are no more, drawn with `seed` and embedded.

    They are normalised with the model's own statistics. Those of the data are used only if the model has none: then
    its teacher had none either.
    """
    splits: dict[str, Any] = {"train": data.train, "validation": data.validation, "test": data.test}
    images = splits[split]
    if not len(images):
        raise ValueError(f"the {split} split of {data.name} is empty; pass another split=")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    drawn = images.subset(order[:limit])
    mean, std = model.config.image_mean or data.mean, model.config.image_std or data.std

    def batches_of(part: Any, size: int) -> Batches:
        return make_batches(part, size, mean=mean, std=std, num_classes=data.num_classes, device=device)

    one = next(iter(batches_of(drawn.subset(torch.tensor([0])), 1)))
    batches = batches_of(drawn, _batch_size(model.embed(one["pixel_values"])))
    return Sample(
        indices=order[:limit],
        chunks=[{"x0": model.embed(batch["pixel_values"]), "labels": batch["labels"]} for batch in batches],
        batches=batches,
        classes=data.classes,
        mean=mean,
        std=std,
        available=len(images),
    )


def _batch_size(state: Tokens) -> int:
    if state.is_cuda:
        return BATCH_ON_CUDA
    return min(max(CACHED_STATES // (state.numel() * state.element_size()), BATCHES[0]), BATCHES[1])


@dataclass(frozen=True)
class ForwardCache:
    """The results of one pass over all images.

    Args:
        outcomes: of every config that is tried on all images.
        final, rest: the states at the model's horizon and at `FAR` of them, batch by batch.
        logits: at the model's horizon [image, label].
        speed: |x_{n+1} - x_n| / (h |x_n|) [time, image], at the middles of the steps, `times`.
    """

    outcomes: dict[SolverConfig, Outcome]
    final: list[Tokens]
    rest: list[Tokens]
    logits: Tensor
    speed: Tensor
    times: tuple[float, ...]


def run_forward(model: ImageModel, sample: Sample) -> ForwardCache:
    """Integrate every image with all configs that are tried on all images.

    The speed is that of the steps the model takes, not f(x): a splitting comes to rest near the rest point of its
    equation, where f is not zero.
    """
    own, reads = model.solver_config, path_configs(model.solver_config)
    counts = [0, *(config.steps for config in reads)]
    starts = [n for n in counts if n + 1 in counts]
    final: list[Tokens] = []
    rest: list[Tokens] = []
    speeds: list[Tensor] = []
    path: dict[int, Tokens] = {}

    def callback(config: SolverConfig, state: Tokens, x0: Tokens) -> None:
        if config not in reads:
            return
        path[config.steps] = state
        if config == reads[-1]:
            path[0] = x0
            moved = [norms(path[n + 1] - path[n]) / norms(path[n]).clamp_min(1e-30) for n in starts]
            speeds.append(torch.stack(moved).cpu() / own.step)
            final.append(path[own.steps])
            rest.append(state)
            path.clear()

    outcomes = sweep(model, sample.chunks, [own, *reads, *step_configs(own), *horizon_configs(own)], callback=callback)
    return ForwardCache(
        outcomes={outcome.solver_config: outcome for outcome in outcomes},
        final=final,
        rest=rest,
        logits=torch.cat([model.readout(state).float().cpu() for state in final]),
        speed=torch.cat(speeds, dim=1),
        times=tuple((n + 0.5) * own.step for n in starts),
    )


def path_configs(own: SolverConfig) -> list[SolverConfig]:
    """The model's own steps up to `FAR` horizons: every step up to the horizon, then pairs of neighbouring steps."""
    N = own.steps
    pairs = [own.stretched(factor).steps for factor in (1.25, 1.5, 2, 3, 4, 5, 6, 7, FAR)]
    return [own.stretched(n / N) for n in sorted({*range(1, N + 1), *pairs, *(n - 1 for n in pairs)} - {0})]


@dataclass(frozen=True)
class Study:
    """What is measured, and what several sections need of it, computed at its first use.

    Args:
        run: a folder, or the name of a bundled model.
        model: in evaluation mode, see `frozen`.
        teacher: of a student, if it is available.
        seed: of random directions.
    """

    run: str | os.PathLike[str]
    model: ImageModel
    sample: Sample
    teacher: Teacher | None = None
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0

    @property
    def solver_config(self) -> SolverConfig:
        """The model's own."""
        return self.model.solver_config

    @property
    def aligned_config(self) -> SolverConfig:
        """The same with at least one step for every layer of the teacher."""
        layers = 0 if self.teacher is None else self.teacher.num_layers
        return self.solver_config.replace(steps=max(self.solver_config.steps, layers))

    @cached_property
    def forward_cache(self) -> ForwardCache:
        """One pass over all images with many configs."""
        return run_forward(self.model, self.sample)

    @cached_property
    def limits(self) -> StabilityLimits:
        """Stability limits of the solvers, from the eigenvalues at the rest points of a few images.

        For weights that depend on time, from those along the path as well; for a velocity that fades, from these alone.
        """
        x0, field = self.sample.start(self.sizes.limits), self.model.field
        since = field.autonomous_from
        along = None if since == 0 else measure_limits_along_path(field, x0, self.solver_config)
        if along is not None and (since == math.inf or getattr(field, "fade", None) is not None):
            return along
        rest = measure_limits(field, self.forward_cache.rest[0][: len(x0)], x0, max(self.solver_config.horizon, since))
        return rest if along is None else combine_limits([along, rest])

    @cached_property
    def exponents(self) -> tuple[LargestExponents, LargestExponents]:
        """lambda_1 of all images, along the path and at rest."""
        starts = (chunk["x0"] for chunk in self.sample.chunks)
        return measure_exponents(self.model.field, self.solver_config, starts, self.forward_cache.rest, seed=self.seed)

    @cached_property
    def answers(self) -> dict[str, Any]:
        """Label, answer and margin p_1 - p_2 of each image at the model's own horizon, and accuracy by class."""
        best = self.forward_cache.logits.softmax(dim=-1).topk(2, dim=-1)
        labels, answers = self.sample.labels, best.indices[:, 0]
        classes = {}
        for label in labels.unique().tolist():
            right = Proportion.of(answers[labels == label] == label)
            classes[label] = {"name": self.sample.classes[label], **right.to_dict()}
        return {
            "images": self.sample.indices,
            "labels": labels,
            "answers": answers,
            "margins": best.values[:, 0] - best.values[:, 1],
            "classes": classes,
        }

    @cached_property
    def alignment(self) -> tuple[Alignment, bool]:
        """The step for each layer of the teacher; True if it is that of the training, False if evenly spaced."""
        path = Path(self.run) / "alignment.json"
        if path.is_file():
            return Alignment.load(path), True
        assert self.teacher is not None  # only students have an alignment
        return Alignment("uniform", (1.0,) * self.teacher.num_layers), False
