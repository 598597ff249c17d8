"""odevit info: what is installed, and what can be asked for by name."""

from __future__ import annotations

from typing import Any

import torch

from odevit.bundled import bundled_models
from odevit.cli.words import Verb
from odevit.depth import DEPTHS
from odevit.field import ATTENTIONS, NORMS
from odevit.model.presets import PARAMETERS
from odevit.solver import SOLVERS
from odevit.train.record import versions


def info() -> dict[str, Any]:
    """Versions, devices, and everything that can be asked for by name."""
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


def _show(facts: dict[str, Any]) -> None:
    for title, facts_of in facts.items():
        if isinstance(facts_of, dict):
            lines = [
                f"{name}: {fact:,}" if isinstance(fact, int) else f"{name}: {fact}" for name, fact in facts_of.items()
            ]
            print(f"{title}:" + "".join(f"\n  {line}" for line in lines or ["none"]))
        else:
            print(f"{title}: {', '.join(facts_of)}")


VERB = Verb("info", info, _show, "odevit info")
