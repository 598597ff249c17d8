"""RUN -> analysis.json, report.html: all measurements of a model, and their page."""

from __future__ import annotations

import json
import math
import os
import shlex
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from odevit.analysis.base import frozen
from odevit.distill.teacher import load_teacher
from odevit.errors import ConfigError, integer, writable
from odevit.loading import load
from odevit.report.attention import SHOWN
from odevit.report.section import Progress, Verdict, all_sections, draw_all, measure_all, to_builtins, write_page
from odevit.report.study import Sample, Sizes, Study, draw_sample
from odevit.surgery.modeling_student import OdeStudent
from odevit.train.folder import RunFolder
from odevit.train.recipe import SEED
from odevit.train.record import device_name, versions
from odevit.train.splits import SPLIT, load_run_data, resolve_device


@dataclass(frozen=True)
class Analysis:
    """The content of analysis.json, the answers at the top of the page, and the folder of both."""

    numbers: dict[str, Any]
    verdicts: list[Verdict]
    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def analyze(
    run: str | os.PathLike[str],
    *,
    data: str | None = None,
    split: str = "test",
    limit: int | None = 1000,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    cache: str | None = None,
    seed: int = 0,
    depth: str | None = None,
    sizes: Sizes | None = None,
) -> Analysis:
    """Measure how stable a model is, and write analysis.json, report.html and figures.

    Args:
        run: a run's folder, any folder with a model of continuous depth, or the name of a bundled model.
        data: the data to measure on; the run's own unless given.
        split: `test`, `validation` or `train`.
        limit: the number of images, drawn at random with `seed`; None takes all.
        out: a folder; RUN/analysis unless given, and analysis-NAME for a bundled model.
        device: `auto`, `cpu` or `cuda`.
        cache: a folder for decoded images, which makes the next run faster.
        seed: of the images that are drawn and of random directions.
        depth: `ode` integrates the equation of a model that was trained as an equilibrium or as a recurrent network.
        sizes: the number of images for each of the costly parts.
    """
    if not isinstance(sizes, Sizes | None):
        raise ValueError(f"sizes={sizes!r}; expected odevit.report.Sizes(...), from Python only")
    problems = [
        *SPLIT.problem("split", split),
        *integer(1, optional=True).problem("limit", limit),
        *SEED.problem("seed", seed),
        *writable("out", out, folder=True),
    ]
    if problems:
        raise ConfigError("analyze", problems)
    given = {"data": data, "split": split, "limit": limit, "out": out, "device": device, "cache": cache, "seed": seed}
    given["depth"] = depth
    options = [f"{key}={value}" for key, value in given.items() if value != signature(analyze).parameters[key].default]
    progress, sizes, sections = Progress(), sizes or Sizes(), all_sections()
    with progress.stage("load"):
        torch_device = resolve_device(device)
        model: Any = load(run, depth)
        _ = model.field  # raises for a model without a trajectory
        model.to(torch_device)
        teacher = load_teacher(run)
        teacher = None if teacher is None else teacher.to(torch_device)
        dataset = load_run_data(run, data, model, cache)
    with frozen(model):
        with progress.stage("embed"):
            sample = draw_sample(model, dataset, split, limit, seed, torch_device)
        study = Study(run, model, sample, teacher, sizes, seed)
        with progress.stage(f"integrate {len(sample)} images with many solver settings"):
            study.forward_cache  # noqa: B018  computed here, since every section reads it
        numbers = {
            "model": {"run": os.fspath(run), **_describe(model, sample)},
            "data": {
                "source": data or dataset.name,
                "split": split,
                "images": len(sample),
                "asked": limit,
                "available": sample.available,
                "classes": len(sample.classes),
            },
            **measure_all(sections, study, progress),
            "sizes": asdict(sizes),
            "device": device_name(torch_device),
            "versions": versions(),
            "command": shlex.join(["odevit", "analyze", os.fspath(run), *options]),
        }
    if out is not None:
        folder = Path(out)
    elif Path(run).exists():
        # Registered in the manifest of the run, so that overwrite=true removes it with the rest.
        folder = RunFolder(run).register("analysis")
    else:
        # Not NAME alone: the next `odevit analyze NAME` would take that folder for the model.
        folder = Path(f"analysis-{Path(run).name}")
    with progress.stage("draw"):
        verdicts = [verdict for section in sections for verdict in section.judge(numbers)]
        rules = [rule for section in sections for rule in section.thresholds]
        numbers |= {"verdicts": to_builtins(verdicts), "thresholds": rules, "seconds": to_builtins(progress.to_dict())}
        figures = draw_all(sections, numbers, sample.pictures(SHOWN))
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in figures.items():
            (folder / "figures" / f"{name}.png").write_bytes(content)
        title = f"How stable is {Path(run).name}?"
        write_page(folder / "report.html", title, "analysis.html.j2", sections, numbers, figures)
    numbers["seconds"] = to_builtins(progress.to_dict())
    (folder / "analysis.json").write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return Analysis(numbers, verdicts, folder)


def _describe(model: Any, sample: Sample) -> dict[str, Any]:
    """The model in the lead of the page."""
    field, layout = model.field, model.layout()
    fade = getattr(field, "fade", None)
    return {
        "kind": "distilled student" if isinstance(model, OdeStudent) else "classifier",
        "parameters": model.parameter_count,
        **model.solver_config.to_dict(),
        "leak": field.dynamics(sample.start(1)).leak,
        "stopped_at": None if fade is None else fade.end,
        "equation": field.describe(),
        "autonomous_from": field.autonomous_from if math.isfinite(field.autonomous_from) else None,
        "tokens": {"cls": int(layout.has_cls), "patches": layout.num_patches, "registers": layout.num_registers},
    }
