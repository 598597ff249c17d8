"""RUN -> analysis.json, report.html: everything that is measured of a model, and the page that says it."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from odevit.analysis.load import image_processor, load_subject, load_teacher
from odevit.analysis.subject import Subject, untouched
from odevit.data import DataSet
from odevit.distill.student import OdeStudent
from odevit.distill.teacher import Teacher
from odevit.report.depths import depth_numbers
from odevit.report.exponents import (
    class_numbers,
    exception_numbers,
    exponent_numbers,
    group_numbers,
    measure_exponents,
    spectrum_numbers,
)
from odevit.report.integration import answer_numbers, pass_over, speed_numbers, sweep_numbers
from odevit.report.page import write_page
from odevit.report.plain import plain
from odevit.report.progress import Progress
from odevit.report.sample import Sample, draw_sample
from odevit.report.smoothness import (
    approximation_numbers,
    limit_numbers,
    lipschitz_numbers,
    radius_numbers,
    rest_limits,
)
from odevit.report.stopping import stopping_numbers
from odevit.report.teaching import teacher_numbers
from odevit.report.verdict import THRESHOLDS, Verdict, verdicts
from odevit.report.views import SHOWN, attention_numbers, path_numbers
from odevit.solver import SOLVERS
from odevit.train.record import device_name, versions
from odevit.train.splits import choose_device
from odevit.verbs import data_of


@dataclass(frozen=True)
class Sizes:
    """How many images each part is measured on; what is not named here sees all of them."""

    accurate: int = 400
    """The solver that is more accurate than the model's own."""
    solvers: int = 150
    """Other solvers, and the grid of horizons by steps."""
    limits: int = 16
    """Eigenvalues at rest, for the stability limits."""
    groups: int = 64
    """Exponents by kind of token."""
    radius: int = 64
    depths: int = 32
    spectrum: int = 8
    lipschitz: int = 8
    approximation: int = 4


@dataclass(frozen=True)
class Analysis:
    """What was found.

    Args:
        numbers: the content of analysis.json.
        verdicts: the answers on the first page.
        folder: where analysis.json, report.html and the pictures lie.
    """

    numbers: dict[str, Any]
    verdicts: list[Verdict]
    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def analyse(
    run: str | os.PathLike[str],
    *,
    data: str | None = None,
    split: str = "test",
    limit: int | None = 1000,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    cache: str | None = None,
    seed: int = 0,
    sizes: Sizes | None = None,
) -> Analysis:
    """Measure how stable a model is, and write analysis.json, report.html and pictures.

    Args:
        run: a run's folder, any folder with a model of continuous depth, or the name of a bundled model.
        data: what to measure on; the run's own data unless given.
        split: `test`, `validation` or `train`.
        limit: how many images, drawn at random with `seed`; None takes all.
        out: a folder; RUN/analysis unless given, and analysis-NAME for a bundled model.
        device: `auto`, `cpu` or `cuda`.
        cache: a folder to keep decoded images in, for the next time.
        seed: of the images that are drawn and of random directions.
        sizes: how many images the costly parts see.
    """
    if not isinstance(sizes, Sizes | None):
        raise ValueError(f"sizes={sizes!r}; expected odevit.report.Sizes(...), which Python alone can give")
    given = {"data": data, "split": split, "limit": limit, "out": out, "device": device, "cache": cache, "seed": seed}
    progress = Progress()
    with progress.stage("load"):
        subject, teacher = load_subject(run), load_teacher(run)
        place = choose_device(device)
        subject.model.to(place)
        if teacher is not None:
            teacher.to(place)
        dataset = data_of(run, data, _image_size(subject), cache)
    folder = _folder(run, out)
    with untouched(subject.model):
        with progress.stage("embed"):
            sample = draw_sample(subject, dataset, split, limit, seed)
            _check_head(subject, sample, dataset, run)
            described = _describe(run, subject, sample)
        found = measure(run, subject, teacher, sample, sizes or Sizes(), seed, progress)
    with progress.stage("draw"):
        numbers = plain(
            {
                "model": described,
                "data": {
                    "source": data or dataset.name,
                    "split": split,
                    "images": len(sample),
                    "asked": limit,
                    "available": sample.available,
                    "classes": len(sample.classes),
                },
                **found,
                "seed": seed,
                "sizes": asdict(sizes or Sizes()),
                "device": device_name(place),
                "versions": versions(),
                "command": _command(run, given),
            }
        )
        said = verdicts(numbers)
        numbers["verdicts"], numbers["thresholds"] = plain(said), list(THRESHOLDS)
        numbers["seconds"] = plain(progress.numbers())
        folder.mkdir(parents=True, exist_ok=True)
        write_page(folder, numbers, said, sample.pictures(SHOWN))
    numbers["seconds"] = plain(progress.numbers())
    (folder / "analysis.json").write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return Analysis(numbers, said, folder)


def measure(
    run: str | os.PathLike[str],
    subject: Subject,
    teacher: Teacher | None,
    sample: Sample,
    sizes: Sizes,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Every quantity, stage by stage."""
    n = len(sample)
    with progress.stage(f"integrate {n} images in many ways"):
        passage = pass_over(subject, sample)
        answers = answer_numbers(sample, passage)
    with progress.stage("stability limits"):
        limits = rest_limits(subject, sample, passage, sizes.limits)
    with progress.stage(f"other solvers, horizons by steps, {min(n, sizes.solvers)} images"):
        sweep = sweep_numbers(subject, sample, passage, limits, sizes.solvers, sizes.accurate)
    with progress.stage(f"Lyapunov exponents of {n} images"):
        path, rest = measure_exponents(subject, sample, passage, seed)
        exceptions = exception_numbers(subject, sample, passage, rest, answers)
    with progress.stage("exponents by token, spectrum"):
        groups = group_numbers(subject, sample, sizes.groups, seed)
        spectrum = spectrum_numbers(subject, sample, passage, sizes.spectrum, seed=seed)
    with progress.stage("Lipschitz constant, approximation error, contraction radius"):
        lipschitz = lipschitz_numbers(subject, sample, sizes.lipschitz)
        approximation = approximation_numbers(subject, sample, sizes.approximation)
        radius = radius_numbers(subject, sample, passage, sizes.radius, seed)
    with progress.stage("paths and attention"):
        paths, attention = path_numbers(subject, sample), attention_numbers(subject, sample, teacher)
    with progress.stage("three depths"):
        depths = depth_numbers(subject, sample, passage, sizes.depths)
    told = None
    if teacher is not None:
        with progress.stage("distance to the teacher"):
            told = teacher_numbers(run, subject, teacher, sample, passage)
    return {
        "answers": answers,
        "sweep": sweep,
        "limits": limit_numbers(limits, sorted(SOLVERS)),
        "speed": speed_numbers(subject, passage),
        "exponents": {
            "path": exponent_numbers(path, subject),
            "rest": exponent_numbers(rest, subject),
            "by_class": class_numbers(path, answers),
            "by_class_at_rest": class_numbers(rest, answers),
            "by_token": groups,
            "spectrum": spectrum,
        },
        "exceptions": exceptions,
        "lipschitz": lipschitz,
        "approximation": approximation,
        "radius": radius,
        "paths": paths,
        "attention": attention,
        "teacher": told,
        "stopping": stopping_numbers(run),
        "depths": depths,
    }


def _image_size(subject: Subject) -> int:
    return int(image_processor(subject).size["height"])


def _check_head(subject: Subject, sample: Sample, data: DataSet, run: str | os.PathLike[str]) -> None:
    labels = subject.logits(sample.chunks[0]["x0"][:1]).shape[-1]
    if labels != data.num_classes:
        raise ValueError(
            f"the data has {data.num_classes} classes, the head of {os.fspath(run)} has {labels}; "
            "give the data that the model was trained for with data="
        )


def _folder(run: str | os.PathLike[str], out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out)
    # A folder with the name of a bundled model would be taken for it the next time.
    return Path(run) / "analysis" if Path(run).exists() else Path(f"analysis-{Path(run).name}")


def _describe(run: str | os.PathLike[str], subject: Subject, sample: Sample) -> dict[str, Any]:
    layout = subject.layout
    return {
        "run": os.fspath(run),
        "kind": "distilled student" if isinstance(subject.model, OdeStudent) else "classifier",
        "parameters": subject.parameters,
        "solver": subject.solver,
        "steps": subject.steps,
        "horizon": subject.horizon,
        "leak": subject.field.dynamics(sample.chunks[0]["x0"][:1]).leak,
        "tokens": {"cls": int(layout.has_cls), "patches": layout.num_patches, "registers": layout.num_registers},
    }


def _command(run: str | os.PathLike[str], given: dict[str, Any]) -> str:
    usual = {"data": None, "split": "test", "limit": 1000, "out": None, "device": "auto", "cache": None, "seed": 0}
    words = [f"{key}={value}" for key, value in given.items() if value != usual[key]]
    return shlex.join(["odevit", "analyze", os.fspath(run), *words])
