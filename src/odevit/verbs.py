"""The verbs of the command line as functions: train, distill, evaluate, analyze, explore, predict, info."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from odevit.bundled import bundled_models
from odevit.errors import ConfigError
from odevit.model import OdeViTForImageClassification
from odevit.train.evaluate import Score


def train(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Train a model and give back its folder.

    Args:
        overrides: words as on the command line: `["experiment=fast/cifar10", "train.epochs=10"]`.
        settings: the same as keywords: `train(experiment="digits", seed=1, **{"train.epochs": 10})`.
    """
    from odevit.train.compose import compose_recipe
    from odevit.train.run import train_recipe

    words = [*overrides, *(f"{key}={_word(value)}" for key, value in settings.items())]
    recipe, command = compose_recipe(words), shlex.join(["odevit", "train", *words])
    if recipe.head_only:
        from odevit.distill.head import train_head

        return train_head(recipe, command)
    if recipe.teacher:
        raise ValueError(
            "teacher= was given to train; pass head_only=true to give it a new head, or use odevit distill"
        )
    return train_recipe(recipe, command)


def distill(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Distil a teacher into a student without labels and give back the student's folder.

    Args:
        overrides: words as on the command line: `["teacher=FOLDER", "data=FOLDER"]`.
        settings: the same as keywords: `distill(teacher="facebook/dino-vitb16", data="FOLDER")`.
    """
    from odevit.distill.compose import compose_distillation
    from odevit.distill.run import distill_recipe

    words = [*overrides, *(f"{key}={_word(value)}" for key, value in settings.items())]
    return distill_recipe(compose_distillation(words), command=shlex.join(["odevit", "distill", *words]))


@dataclass(frozen=True)
class Evaluation:
    """A score and how it was integrated."""

    solver: str
    steps: int
    horizon: float
    score: Score
    stop: str = ""
    """The criterion by which each image stopped; empty when all went to the horizon."""


def evaluate(
    run: str | os.PathLike[str],
    *,
    data: str | None = None,
    split: str = "test",
    steps: int | Sequence[int] | None = None,
    solver: str | Sequence[str] | None = None,
    horizon: float | Sequence[float] | None = None,
    stop: str | Sequence[str] | None = None,
    batch_size: int = 512,
    device: str = "auto",
    limit: int | None = None,
    cache: str | None = None,
    out: str | os.PathLike[str] | None = None,
) -> list[Evaluation]:
    """Score a model for every combination of solver, steps and horizon.

    Args:
        run: a run's folder, any folder with a model, or the name of a bundled model.
        data: what to score on; the run's own data unless given.
        split: `test`, `validation` or `train`.
        steps, solver, horizon: one or several; the model's own unless given.
        stop: let each image stop by itself, by one criterion or several: "kl", "velocity:0.05", "bound". The score
            without one stands first, to compare with.
        batch_size: images at a time.
        device: `auto`, `cpu` or `cuda`.
        limit: only the first so many images.
        cache: a folder to keep decoded images in, for the next time.
        out: a file to write the scores to as JSON, with the device and the versions.
    """
    from odevit.solver import make_stop
    from odevit.train.evaluate import evaluate_batches
    from odevit.train.record import device_name, versions
    from odevit.train.splits import choose_device, evaluation_batches

    if split not in ("train", "validation", "test"):
        raise ValueError(f"split={split!r}; expected train, validation or test")
    where = choose_device(device)
    model, about = _scorable(run)
    torch.nn.Module.to(model.eval(), where)
    dataset = data_of(run, data, about["size"], cache)
    if dataset.num_classes != about["labels"]:
        raise ValueError(
            f"the data has {dataset.num_classes} classes, the head of {run} has {about['labels']}; "
            "give the data that the model was trained for with data="
        )
    # The model's own statistics, not those of the data: that is what its weights were trained with.
    statistics = {"mean": about["mean"], "std": about["std"]}
    batches = evaluation_batches(dataset, split, batch_size, limit=limit, device=where, **statistics)
    criteria = ["", *_several(stop, [])] if stop else [""]
    for criterion in criteria[1:]:
        make_stop(criterion)  # a misspelt name is better said before the first minute of work
    results = []
    for name in _several(solver, about["solver"]):
        for count in _several(steps, about["steps"]):
            for length in _several(horizon, about["horizon"]):
                how = {} if about["stacked"] else {"solver": name, "steps": count, "horizon": length}
                for criterion in criteria:
                    score = evaluate_batches(model, batches, **how, stop=criterion or None)
                    results.append(Evaluation(name, count, length, score, criterion))
    if out is not None:
        report = {
            "model": os.fspath(run),
            "data": data or dataset.name,
            "split": split,
            "device": device_name(where),
            "versions": versions(),
            "scores": [asdict(each) for each in results],
        }
        Path(out).write_text(json.dumps(report, indent=2) + "\n")
    return results


def analyze(run: str | os.PathLike[str], **settings: Any) -> Path:
    """Measure how stable a model is and give back the report's page; see `odevit.report.analyse` for the settings."""
    from odevit.report import analyse

    return analyse(run, **settings).page


def explore(images: Sequence[str | os.PathLike[str]], **settings: Any) -> list[Path]:
    """Film what a model looks at while it integrates images; see `odevit.explore.explore` for the settings."""
    from odevit.explore import explore as film

    return film(images, **settings)


@dataclass(frozen=True)
class Prediction:
    """The likeliest labels of an image, with their probabilities."""

    image: str
    labels: tuple[tuple[str, float], ...]


def predict(
    images: Sequence[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str] = "cifar10",
    top: int = 3,
    solver: str | None = None,
    steps: int | None = None,
    horizon: float | None = None,
) -> list[Prediction]:
    """Classify image files.

    Pictures are turned upright as their EXIF orientation says. One that is not square is stretched to the model's
    square, whole: crop it first where its proportions matter. Data sets are read otherwise, by their centred square.

    Args:
        images: paths.
        model: a folder or the name of a bundled model.
        top: how many labels of each.
        solver, steps, horizon: how to integrate; the model's own unless given.
    """
    from odevit.data.picture import read_picture
    from odevit.model import make_image_processor

    network = load_model(model).eval()
    processor = make_image_processor(network.config)
    found = []
    for path in images:
        picture = read_picture(path).convert("RGB" if network.config.num_channels == 3 else "L")
        pixels = processor(picture, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            output = network(pixels, solver=solver, steps=steps, horizon=horizon)
        best = output.logits.softmax(-1)[0].topk(min(top, network.config.num_labels))
        labels = [network.config.id2label[int(i)] for i in best.indices]
        found.append(Prediction(os.fspath(path), tuple(zip(labels, best.values.tolist(), strict=True))))
    return found


def info() -> dict[str, Any]:
    """Versions, devices, and everything that can be asked for by name."""
    from odevit.depth import DEPTHS
    from odevit.field import ATTENTIONS, NORMS
    from odevit.model.presets import PARAMETERS
    from odevit.solver import SOLVERS
    from odevit.train.record import versions

    devices = ["cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))]
    return {
        "versions": versions(),
        "devices": devices,
        "bundled models": {name: str(path) for name, path in bundled_models().items()},
        "presets": dict(PARAMETERS),
        "solvers": sorted(SOLVERS),
        "attentions": sorted(ATTENTIONS),
        "norms": sorted(NORMS),
        "depths": sorted(DEPTHS),
    }


def load_model(name: str | os.PathLike[str]) -> OdeViTForImageClassification:
    """A model from a folder or by its bundled name, in single precision."""
    path = Path(name)
    if not path.exists() and os.fspath(name) not in bundled_models():
        known = ", ".join(bundled_models()) or "none"
        raise ValueError(f"{os.fspath(name)!r} is neither a folder nor a bundled model; bundled: {known}")
    return OdeViTForImageClassification.from_pretrained(os.fspath(name), dtype=torch.float32)


def _scorable(run: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """A classifier or a distilled student, and what an evaluation has to know of it."""
    if not (Path(run) / "encoder.json").is_file():
        model = load_model(run)
        c = model.config
        about = {"size": c.image_size, "labels": c.num_labels, "mean": c.image_mean, "std": c.image_std}
        return model, {
            **about,
            "solver": c.solver,
            "steps": c.steps,
            "horizon": c.horizon,
            "stacked": c.depth == "stacked",
        }
    from odevit.distill.answering import AnsweringStudent
    from odevit.distill.pixels import statistics_of
    from odevit.distill.student import OdeStudent

    student = OdeStudent.from_pretrained(run)
    depth, pixels = student.encoder.depth, statistics_of(student.processor, student.model)
    if pixels is None:
        raise ValueError(
            f"{run} has no preprocessor_config.json with image_mean and image_std; put the teacher's there"
        )
    return AnsweringStudent(student), {
        "size": student.anatomy.size[0],
        "labels": student.anatomy.labels,
        "mean": pixels.mean,
        "std": pixels.std,
        "solver": depth.solver,
        "steps": depth.steps,
        "horizon": depth.horizon,
        "stacked": False,
    }


def data_of(run: str | os.PathLike[str], data: str | None, image_size: int, cache: str | None) -> Any:
    """The data a run was trained on, read the same way, or the data given."""
    import yaml

    from odevit.data import load_data

    recipe = Path(run) / "recipe.yaml"
    how: Mapping[str, Any] = yaml.safe_load(recipe.read_text())["data"] if recipe.exists() else {}
    source = data or how.get("source")
    if source is None:
        raise ConfigError("evaluate", [f"{run} has no recipe.yaml that names its data; pass data=FOLDER"])
    # The same split as in training, and the same columns unless the data is another.
    kept = ["validation", "split_seed"] + (["image_column", "label_column"] if source == how.get("source") else [])
    options: dict[str, Any] = {key: how[key] for key in kept if key in how}
    return load_data(source, image_size=image_size, cache=cache, **options)


def _several(value: Any, own: Any) -> list[Any]:
    if value is None:
        return [own]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_word(each) for each in value) + "]"
    return "null" if value is None else str(value)
