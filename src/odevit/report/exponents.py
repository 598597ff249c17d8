"""lambda of every image: along its path, where it comes to rest, by class, by token, and what the exceptions do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.lyapunov import (
    Exponents,
    by_class,
    divergence_step,
    lyapunov_spectrum,
    lyapunov_time,
    maximal_exponent,
)
from odevit.analysis.subject import Subject
from odevit.report.integration import FAR, Passage
from odevit.report.plain import quantiles
from odevit.report.restless import WINDOW, watch
from odevit.report.sample import Sample
from odevit.report.significance import Share, correlation
from odevit.solver import FixedStepSolver, make_solver

TURNING = 2
"""Horizons at rest that a perturbation is given to turn towards the slowest direction before its growth is counted."""
COUNTED = 1
"""Horizons over which its growth is counted."""
LONGER = 8
"""Horizons that are added for an image whose exponent may still be either side of zero."""
DOUBT = 3.0
"""Standard errors within which of zero that is so."""
DOUBTFUL = 64
"""Images that are measured for longer, and exceptions that are looked at, at most."""


@dataclass(frozen=True)
class Maximal:
    """lambda_1 of every image [image], its standard error, whether it has converged, and the mean while it was found.

    Args:
        running: [time], the mean over images after each step of the first measurement.
        times: of it.
        prolonged: [image], whether it was measured for longer.
    """

    values: Tensor
    error: Tensor
    converged: Tensor
    running: Tensor
    times: tuple[float, ...]
    prolonged: Tensor


def solver_of(subject: Subject) -> str:
    """The solver whose steps are differentiated: the model's own, or RK4 where that chooses its own steps."""
    return subject.solver if isinstance(make_solver(subject.solver), FixedStepSolver) else "rk4"


def measure_exponents(subject: Subject, sample: Sample, passage: Passage, seed: int = 0) -> tuple[Maximal, Maximal]:
    """lambda_1 along the path up to the horizon, and where the trajectory has come to rest.

    A perturbation at rest begins in the direction it has at the end of the path, is given `TURNING` horizons to turn,
    and counted for `COUNTED`. Where the sign remains in doubt it is followed for `LONGER`.
    """
    paths, rests, prolonged = [], [], []
    N, solver = subject.steps, solver_of(subject)
    left = DOUBTFUL
    for chunk, rest in zip(sample.chunks, passage.rest, strict=True):
        x0 = chunk["x0"]
        common: dict[str, Any] = {"solver": solver, "seed": seed, "anchor": x0}
        path = maximal_exponent(subject.field, x0, horizon=subject.horizon, steps=max(2, N), **common)
        found = maximal_exponent(subject.field, rest, **_at_rest(subject, path), **common)
        doubtful = (found.values + DOUBT * found.error > 0).any(dim=1).nonzero().flatten()[:left]
        left -= len(doubtful)
        paths.append(_first(path))
        rests.append(_first(found))
        prolonged.append(torch.zeros(len(x0), dtype=torch.bool))
        if len(doubtful):
            again = maximal_exponent(
                subject.field,
                found.state[doubtful],
                horizon=LONGER * subject.horizon,
                steps=max(2, LONGER * N),
                t0=found.times[-1],
                frame=found.frame[doubtful],
                **{**common, "anchor": x0[doubtful]},
            )
            doubtful = doubtful.cpu()
            for kept, new in zip(rests[-1][:3], _first(again)[:3], strict=True):
                kept[doubtful] = new
            prolonged[-1][doubtful] = True
    never = [torch.zeros(len(each), dtype=torch.bool) for each in prolonged]
    return _joined(paths, path.times, never), _joined(rests, found.times, prolonged)


def exponent_numbers(maximal: Maximal, subject: Subject) -> dict[str, Any]:
    """The exponents with what is said of them; those that are not finite count as not negative."""
    values = maximal.values
    negative, settled = values < 0, maximal.converged
    finite = values[values.isfinite()]
    growing = values[values > 0]
    steps = divergence_step(growing, subject.steps, subject.horizon)
    low, middle, high = quantiles(values, 0.05, 0.5, 0.95)
    return {
        "images": len(values),
        "values": values,
        "errors": maximal.error,
        "converged": settled,
        "negative": Share(int(negative.sum()), len(values)).numbers(),
        "not_converged": Share(int((~settled).sum()), len(values)).numbers(),
        "negative_of_converged": Share(int((negative & settled).sum()), int(settled.sum())).numbers(),
        "mean": finite.mean().item() if len(finite) else None,
        "mean_error": finite.std().item() / len(finite) ** 0.5 if len(finite) > 1 else None,
        "quantiles": {"5%": low, "50%": middle, "95%": high},
        "largest": finite.max().item() if len(finite) else None,
        "prolonged": int(maximal.prolonged.sum()),
        "positive": {
            "count": len(growing),
            "lyapunov_time": {"median": quantiles(lyapunov_time(growing), 0.5)[0]},
            "diverges_within_the_horizon": int((steps >= 0).sum()),
            "divergence_step": {"median": quantiles(steps[steps >= 0].double(), 0.5)[0]},
        },
        "running": {"times": list(maximal.times), "mean": maximal.running},
    }


def class_numbers(maximal: Maximal, answers: dict[str, Any]) -> dict[str, Any]:
    """The mean exponent of each class beside its accuracy, and how the two go together (the paper's Fig. 5)."""
    kept = maximal.values.isfinite()
    means = by_class(maximal.values[kept], answers["labels"][kept])
    rows = [
        {
            "class": answers["classes"][label]["name"],
            "exponent": mean.mean,
            "error": mean.error,
            "count": mean.count,
            "accuracy": answers["classes"][label]["value"],
            "accuracy_error": answers["classes"][label]["error"],
        }
        for label, mean in means.items()
    ]
    found = correlation([row["exponent"] for row in rows], [row["accuracy"] for row in rows])
    return {"classes": rows, "correlation": None if found is None else vars(found)}


def group_numbers(subject: Subject, sample: Sample, images: int, seed: int = 0) -> dict[str, Any]:
    """lambda_1 along the path of a perturbation that begins in CLS, in the patches or in the registers only."""
    layout = subject.layout
    groups = {"CLS": layout.cls, "patches": layout.patches, "registers": layout.registers}
    found = {}
    for name, tokens in groups.items():
        if tokens.start == tokens.stop:
            continue
        measured = [
            _first(
                maximal_exponent(
                    subject.field,
                    chunk["x0"],
                    horizon=subject.horizon,
                    steps=max(2, subject.steps),
                    solver=solver_of(subject),
                    tokens=tokens,
                    seed=seed,
                )
            )
            for chunk in sample.first(images)
        ]
        values = torch.cat([each[0] for each in measured])
        finite = values[values.isfinite()]
        found[name] = {
            "images": len(values),
            "mean": finite.mean().item() if len(finite) else None,
            "error": finite.std().item() / len(finite) ** 0.5 if len(finite) > 1 else None,
            "negative": Share(int((values < 0).sum()), len(values)).numbers(),
            "converged": Share(int(torch.cat([each[2] for each in measured]).sum()), len(values)).numbers(),
        }
    return found


def spectrum_numbers(
    subject: Subject, sample: Sample, passage: Passage, images: int, k: int = 4, seed: int = 0
) -> dict[str, Any]:
    """The k leading exponents of a handful of images, along the path and at rest."""
    chunk = next(iter(sample.first(images)))
    x0 = chunk["x0"]
    rest = passage.rest[0][: len(x0)]
    common: dict[str, Any] = {"solver": solver_of(subject), "seed": seed, "anchor": x0}
    k = min(k, x0[0].numel())
    path = lyapunov_spectrum(subject.field, x0, k, horizon=subject.horizon, steps=max(2, subject.steps), **common)
    calm = lyapunov_spectrum(subject.field, rest, k, **_at_rest(subject, path), **common)
    return {
        "images": len(x0),
        "k": k,
        **{
            name: {"values": each.values, "errors": each.error, "converged": each.converged}
            for name, each in (("path", path), ("rest", calm))
        },
    }


def exception_numbers(
    subject: Subject, sample: Sample, passage: Passage, rest: Maximal, answers: dict[str, Any]
) -> dict[str, Any]:
    """What the images do whose exponent at rest is not negative, one by one."""
    which = (~(rest.values < 0)).nonzero().flatten().tolist()
    rows: list[dict[str, Any]] = []
    start = 0
    for chunk, states in zip(sample.chunks, passage.rest, strict=True):
        here = [i - start for i in which[:DOUBTFUL] if start <= i < start + len(states)]
        start += len(states)
        if not here:
            continue
        motions = watch(subject, states[here], chunk["x0"][here], FAR * subject.horizon)
        for i, motion in zip(here, motions, strict=True):
            number = start - len(states) + i
            rows.append(
                {
                    "image": int(sample.numbers[number]),
                    "label": sample.classes[int(answers["labels"][number])],
                    "answer": sample.classes[int(answers["answers"][number])],
                    "exponent": rest.values[number].item(),
                    "error": rest.error[number].item(),
                    "converged": bool(rest.converged[number]),
                    **{**vars(motion), "answers": [sample.classes[each] for each in motion.answers]},
                }
            )
    kinds = {kind: sum(row["kind"] == kind for row in rows) for kind in sorted({row["kind"] for row in rows})}
    return {
        "count": len(which),
        "looked_at": len(rows),
        "window": WINDOW * subject.horizon,
        "kinds": kinds,
        "between": sum(row["between"] for row in rows),
        "wrong": sum(row["label"] != row["answer"] for row in rows),
        "rows": rows,
    }


def _at_rest(subject: Subject, path: Exponents) -> dict[str, Any]:
    """How a measurement goes on where the trajectory has come to rest, in the directions that its path ended with."""
    counted = max(2, COUNTED * subject.steps)
    return {
        "horizon": counted * subject.horizon / subject.steps,
        "steps": counted,
        "transient": TURNING * subject.horizon,
        "t0": FAR * subject.horizon,
        # A frame that is no longer finite tells nothing; a random one will not be worse.
        "frame": path.frame if torch.isfinite(path.frame).all() else None,
    }


def _first(found: Exponents) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lambda_1, its error, whether it converged, and the sum over images while it was found, on the CPU."""
    running = torch.where(found.running.isfinite(), found.running, 0.0)[..., 0].sum(dim=1)
    return found.values[:, 0].cpu(), found.error[:, 0].cpu(), found.converged.cpu(), running.cpu()


def _joined(
    parts: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], times: tuple[float, ...], prolonged: Sequence[Tensor]
) -> Maximal:
    values, error, converged, running = zip(*parts, strict=True)
    together = torch.cat(values)
    mean = torch.stack(running).sum(dim=0) / max(1, int(together.isfinite().sum()))
    return Maximal(together, torch.cat(error), torch.cat(converged), mean, times, torch.cat(list(prolonged)))
