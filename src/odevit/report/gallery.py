"""numbers -> PNG by name: every picture that a report can show, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from odevit.distill.stopping import draw_tracking
from odevit.report.figures.attention import draw_attention
from odevit.report.figures.exponents import draw_classes, draw_exponents, draw_spectrum
from odevit.report.figures.integration import draw_grid, draw_horizons, draw_speed, draw_steps
from odevit.report.figures.paths import draw_both, draw_plane
from odevit.report.figures.smoothness import draw_lipschitz, draw_radius
from odevit.report.figures.stopping import draw_stop
from odevit.report.figures.teaching import draw_bins, draw_correctness, draw_layers


def drawings(numbers: Mapping[str, Any], pictures: Tensor) -> dict[str, Callable[[], Figure]]:
    """How each picture is drawn that the numbers allow."""
    sweep, exponents, teacher = numbers["sweep"], numbers["exponents"], numbers["teacher"]
    found: dict[str, Callable[[], Figure]] = {
        "speed": lambda: draw_speed(numbers["speed"]),
        "exponents": lambda: draw_exponents(exponents["path"], exponents["rest"]),
        "spectrum": lambda: draw_spectrum(exponents["spectrum"]),
        "steps": lambda: draw_steps(sweep),
        "horizons": lambda: draw_horizons(sweep),
        "grid": lambda: draw_grid(sweep["grid"], sweep["own"]),
        "lipschitz": lambda: draw_lipschitz(numbers["lipschitz"]),
        "radius": lambda: draw_radius(numbers["radius"]),
    }
    if numbers["paths"]["images"]:
        found["plane"] = lambda: draw_plane(numbers["paths"])
    if exponents["by_class"]["classes"]:
        found["classes"] = lambda: draw_classes(exponents["by_class"])
    if numbers["attention"]["images"]:
        found["attention"] = lambda: draw_attention(numbers["attention"], pictures)
    if teacher is not None:
        found |= {
            "both": lambda: draw_both(teacher["paths"], pictures),
            "layers": lambda: draw_layers(teacher),
            "correctness": lambda: draw_correctness(teacher),
            "bins": lambda: draw_bins(teacher),
        }
    stopping = numbers["stopping"]
    if stopping is not None and stopping["score_at_stop"] is not None and stopping["score_at_end"] is not None:
        found["stop"] = lambda: draw_stop(stopping)
    return found


def draw_all(folder: Path, numbers: Mapping[str, Any], pictures: Tensor) -> dict[str, bytes]:
    """Draw them, save each as `folder`/NAME.png, and give their content."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, draw in drawings(numbers, pictures).items():
        drawn[name] = folder / f"{name}.png"
        draw().savefig(drawn[name])
    if numbers["stopping"] is not None:
        drawn["tracking"] = folder / "tracking.png"
        draw_tracking(Path(numbers["model"]["run"]) / "bound.jsonl", drawn["tracking"])
    return {name: path.read_bytes() for name, path in drawn.items()}
