"""odevit predict, odevit eval: a model and images -> labels, or how often they are right."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from odevit.cli.parser import Command, print_table
from odevit.data.decode import read_picture
from odevit.errors import ConfigError, integer, writable
from odevit.loading import load
from odevit.solvers.early_exit import make_stop
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.record import device_name, versions
from odevit.train.splits import SPLIT, evaluation_batches, load_run_data, resolve_device


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

    Pictures become pixels by the model's image processor, as they do in training and evaluation: turned upright as
    their EXIF orientation says, and of those that are not square, for a model of ours, the centred square.

    Args:
        images: paths of image files.
        model: folder of a run or of any saved model, or the name of a bundled model.
        top: how many labels to give for each image.
        solver, steps, horizon: how to integrate; the model's own unless given.
    """
    if problems := integer(1).problem("top", top):
        raise ConfigError("predict", problems)
    network = load(model)
    solver_config = network.depth.resolve(solver, steps, horizon)
    predictions = []
    for path in images:
        with torch.no_grad():
            logits, solution = network.ask(network.pixels_of(read_picture(path)), solver_config)
        solution.require(f"{path} has no answer")
        shares, numbers = logits.softmax(-1)[0].topk(min(top, logits.shape[-1]))
        labels = [network.labels.get(number, f"class {number}") for number in numbers.tolist()]
        predictions.append(Prediction(os.fspath(path), tuple(zip(labels, shares.tolist(), strict=True))))
    return predictions


def _show_predictions(predictions: list[Prediction]) -> None:
    for prediction in predictions:
        print(prediction.image + "\t" + "  ".join(f"{label} {share:.1%}" for label, share in prediction.labels))


@dataclass(frozen=True)
class Evaluation:
    """A score, and the way to integrate that gave it."""

    solver: str
    steps: int
    horizon: float
    score: Score
    grid: Any = "uniform"
    """Where the steps lie."""
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
    depth: str | None = None,
    batch_size: int = 512,
    device: str = "auto",
    limit: int | None = None,
    cache: str | None = None,
    out: str | os.PathLike[str] | None = None,
) -> list[Evaluation]:
    """Score a model for every combination of solver, steps and horizon.

    Args:
        run: folder of a run or of any saved model, or the name of a bundled model.
        data: what to score on; the run's own data unless given.
        split: `test`, `validation` or `train`.
        steps, solver, horizon: one or several; the model's own unless given.
        stop: let each image stop when it is done, by one criterion or several: kl, velocity:0.05, bound. The score
            without one comes first, for comparison.
        depth: another meaning of depth for the same weights: `ode`, `equilibrium` or `tied`.
        batch_size: images at a time.
        device: `auto`, `cpu` or `cuda`.
        limit: only this many images, from the first.
        cache: folder to keep decoded images in, for the next time.
        out: file to write the scores to as JSON, with the device and the versions.
    """
    problems = [
        *SPLIT.problem("split", split),
        *integer(1).problem("batch_size", batch_size),
        *integer(1, optional=True).problem("limit", limit),
        *writable("out", out),
        *(
            f"{name}=[]; expected one or several, separated by commas"
            for name, given in {"solver": solver, "steps": steps, "horizon": horizon}.items()
            if not _several(given)
        ),
    ]
    if problems:
        raise ConfigError("eval", problems)
    criteria = ["", *_several(stop)] if stop else [""]
    for criterion in criteria[1:]:
        make_stop(criterion)  # a misspelt name is better reported before the first minute of work
    place, model = resolve_device(device), load(run, depth)
    ways = [model.depth.resolve(*pieces) for pieces in product(*map(_several, (solver, steps, horizon)))]
    dataset = load_run_data(run, data, model, cache)
    model.to(place)
    batches = evaluation_batches(dataset, split, batch_size, limit=limit, device=place)
    results = []
    for solver_config, criterion in product(ways, criteria):
        score = evaluate_batches(model, batches, solver_config=solver_config, stop=criterion or None)
        results.append(Evaluation(**(solver_config or model.solver_config).to_dict(), score=score, stop=criterion))
    if out is not None:
        report = {
            "model": os.fspath(run),
            **({} if depth is None else {"depth": depth}),
            "data": data or dataset.name,
            "split": split,
            "device": device_name(place),
            "versions": versions(),
            "scores": [asdict(result) for result in results],
        }
        Path(out).write_text(json.dumps(report, indent=2) + "\n")
    return results


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _show_scores(results: list[Evaluation]) -> None:
    header = ("solver", "steps", "horizon", "stop", *results[0].score.ranks, "NFE", "ms/image", "images")
    rows, failures = [], []
    for result in results:
        score = result.score
        solver_config = (result.solver, str(result.steps), f"{result.horizon:g}", result.stop)
        shares = (f"{share:.2%}" if score.finite else "no answer" for share in score.ranks.values())
        rows.append((*solver_config, *shares, f"{score.nfe:.4g}", f"{score.milliseconds:.3f}", f"{score.images:,}"))
        if score.warning:
            failures.append(f"{', '.join(filter(None, solver_config))}: {score.warning}")
    print_table(rows, header, left=("solver", "stop"))
    for failure in failures:
        print(failure)


EVAL = Command(
    "eval",
    evaluate,
    _show_scores,
    ("odevit eval RUN steps=4,8,12,24 solver=euler,heun", "odevit eval RUN stop=kl:0.005"),
)
PREDICT = Command(
    "predict", predict, _show_predictions, ("odevit predict cat.png top=5", "odevit predict *.jpg model=RUN steps=24")
)
