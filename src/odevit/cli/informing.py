"""odevit info: what is installed, and what can be asked for by name."""

from __future__ import annotations

from typing import Any

import torch

from odevit.bundled import bundled_models
from odevit.cli.parser import Command
from odevit.core.attention import ATTENTIONS
from odevit.core.base import DEPTHS, SOLVERS
from odevit.core.layers import NORMS
from odevit.hf.presets import PARAMETERS
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
    for title, entries in facts.items():
        if isinstance(entries, dict):
            lines = [f"{name}: {entry:{',' if isinstance(entry, int) else ''}}" for name, entry in entries.items()]
            print(f"{title}:", *lines or ["none"], sep="\n  ")
        else:
            print(f"{title}: {', '.join(entries)}")


INFO = Command("info", info, _show, ("odevit info", "odevit info | grep solvers"))
