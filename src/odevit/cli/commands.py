"""eval, predict, analyze, explore, compare, serve, info: the commands that take no recipe, and how they print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from odevit.bundled import bundled_models
from odevit.cli.parser import Command, print_table
from odevit.core.attention import ATTENTIONS
from odevit.core.base import DEPTHS, SOLVERS
from odevit.core.layers import NORMS
from odevit.data.decode import read_picture
from odevit.errors import ConfigError, IntegrationError, integer, writable
from odevit.hf.presets import PARAMETERS
from odevit.loading import load
from odevit.solvers.early_exit import make_stop
from odevit.train.compose import GROUPS
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.record import device_name, versions
from odevit.train.splits import SPLIT, evaluation_batches, load_run_data, resolve_device


@dataclass(frozen=True)
class Prediction:
    """The likeliest labels of an image with their probabilities; without labels, `failure` says why."""

    image: str
    labels: tuple[tuple[str, float], ...] = ()
    failure: str = ""


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

    Images become pixels by the model's image processor, as in training and evaluation: rotated as their EXIF
    orientation says and, by our own processor, cropped to the central square. An image whose trajectory fails gets no
    labels; the others are predicted.

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
        name, pixels = os.fspath(path), network.pixels_of(read_picture(path))
        try:
            with torch.no_grad():
                output = network(pixels, solver_config=solver_config, on_failure="raise", return_dict=True)
        except IntegrationError as error:
            predictions.append(Prediction(name, failure=str(error)))
            continue
        shares, numbers = output.logits.softmax(-1)[0].topk(min(top, output.logits.shape[-1]))
        labels = [network.labels.get(number, f"class {number}") for number in numbers.tolist()]
        predictions.append(Prediction(name, tuple(zip(labels, shares.tolist(), strict=True))))
    return predictions


def print_predictions(predictions: list[Prediction]) -> int:
    """One line per image; failed ones go to standard error. The exit status is 1 if some failed and 2 if all did."""
    for prediction in predictions:
        if prediction.failure:
            print(f"odevit predict: {prediction.image} has no answer: {prediction.failure}", file=sys.stderr)
        else:
            print(prediction.image + "\t" + "  ".join(f"{label} {share:.1%}" for label, share in prediction.labels))
    failed = sum(bool(prediction.failure) for prediction in predictions)
    return 2 if failed == len(predictions) else int(failed > 0)


@dataclass(frozen=True)
class Evaluation:
    """A score and the solver settings that gave it."""

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
        cache: folder that keeps decoded images for the next time.
        out: JSON file to write the scores to, with the device and the versions.
    """
    problems = [
        *SPLIT.problem("split", split),
        *integer(1).problem("batch_size", batch_size),
        *integer(1, optional=True).problem("limit", limit),
        *writable("out", out),
        *(
            f"{name}=[]; expected one or several, separated by commas"
            for name, given in {"solver": solver, "steps": steps, "horizon": horizon}.items()
            if not _as_list(given)
        ),
    ]
    if problems:
        raise ConfigError("eval", problems)
    criteria = ["", *_as_list(stop)] if stop else [""]
    for criterion in criteria[1:]:
        make_stop(criterion)  # raises for an unknown name, before the first minute of work
    place, model = resolve_device(device), load(run, depth)
    configs = [model.depth.resolve(*parts) for parts in product(*map(_as_list, (solver, steps, horizon)))]
    dataset = load_run_data(run, data, model, cache)
    model.to(place)
    batches = evaluation_batches(dataset, split, batch_size, limit=limit, device=place)
    results = []
    for config, criterion in product(configs, criteria):
        score = evaluate_batches(model, batches, solver_config=config, stop=criterion or None)
        results.append(Evaluation(**(config or model.solver_config).to_dict(), score=score, stop=criterion))
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


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def print_scores(results: list[Evaluation]) -> None:
    """A row for each score, and below the table what is wrong with any of them."""
    header = ("solver", "steps", "horizon", "stop", *results[0].score.ranks, "NFE", "ms/image", "images")
    rows, warnings = [], []
    for result in results:
        score, settings = result.score, (result.solver, str(result.steps), f"{result.horizon:g}", result.stop)
        shares = (f"{share:.2%}" if score.finite else "no answer" for share in score.ranks.values())
        rows.append((*settings, *shares, f"{score.nfe:.4g}", f"{score.milliseconds:.3f}", f"{score.images:,}"))
        if score.warning:
            warnings.append(f"{', '.join(filter(None, settings))}: {score.warning}")
    print_table(rows, header, left=("solver", "stop"))
    for warning in warnings:
        print(warning)


def analyze(run: str | os.PathLike[str], **settings: Any) -> Path:
    """Measure how stable a model is and return the report's page; settings are those of `odevit.report.analysis`."""
    from odevit.report.analysis import analyze as write_report  # matplotlib is slow to import

    return write_report(run, **settings).page


def info() -> dict[str, Any]:
    """Versions, devices, and everything that can be named in an argument."""
    return {
        "versions": versions(),
        "devices": ["cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))],
        "bundled models": {name: str(path) for name, path in bundled_models().items()},
        "presets": dict(PARAMETERS),
        "solvers": sorted(SOLVERS),
        "attentions": sorted(ATTENTIONS),
        "norms": sorted(NORMS),
        "depths": sorted(DEPTHS),
    }


def print_info(parts: dict[str, Any]) -> None:
    for title, entries in parts.items():
        if isinstance(entries, dict):
            lines = [f"{name}: {entry:{',' if isinstance(entry, int) else ''}}" for name, entry in entries.items()]
            print(f"{title}:", *lines or ["none"], sep="\n  ")
        else:
            print(f"{title}: {', '.join(entries)}")


class CompareCommand(Command):
    """A command that also takes the keys of a recipe: those with a dot, and groups that are not its own keys."""

    def parse(self, words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        groups = {*GROUPS} - {*self.arguments()[1], "system"}
        keys = {word: word.partition("=")[0] for word in words if "=" in word}
        recipe = [word for word, key in keys.items() if key in groups or ("." in key and "/" not in key)]
        positional, keywords = super().parse([word for word in words if word not in recipe])
        return positional, {**keywords, **({"overrides": tuple(recipe)} if recipe else {})}


def print_comparison(folder: Path) -> None:
    from odevit.compare.report import HEAD, JSON, PAGE, cells, ranked

    rows = ranked(json.loads((folder / JSON).read_text())["rows"])
    print_table([cells(row) for row in rows], HEAD, left=("system",))
    print(folder / PAGE)


COMMANDS = {
    "eval": Command(
        "eval",
        evaluate,
        print_scores,
        ("odevit eval RUN steps=4,8,12,24 solver=euler,heun", "odevit eval RUN stop=kl:0.005"),
    ),
    "predict": Command(
        "predict",
        predict,
        print_predictions,
        ("odevit predict cat.png top=5", "odevit predict *.jpg model=RUN steps=24"),
    ),
    "analyze": Command(
        "analyze",
        "odevit.report:analyze",
        lambda analysis: print(analysis.page),
        ("odevit analyze RUN", "odevit analyze RUN limit=200"),
    ),
    "explore": Command(
        "explore",
        "odevit.explorer.film:explore",
        lambda paths: print(*paths, sep="\n"),
        ("odevit explore cat.png", "odevit explore cat.png model=RUN seconds=4"),
    ),
    "compare": CompareCommand(
        "compare",
        "odevit.compare.runner:compare",
        print_comparison,
        (
            "odevit compare systems=vit,ode-vit,attractor seeds=0,1,2 epochs=20",
            "odevit compare data=FOLDER parameters=500000 updates=2000 train.batch_size=256",
        ),
    ),
    "serve": Command(
        "serve", "odevit.explorer.server:serve", lambda _: None, ("odevit serve", "odevit serve model=RUN port=8000")
    ),
    "info": Command("info", info, print_info, ("odevit info", "odevit info | grep solvers")),
}
