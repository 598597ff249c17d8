"""out/checkpoints/checkpoint-N: written whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

COMPLETE = "complete"
"""An empty file, written last. A checkpoint without it was interrupted and is not resumed from."""


def mark_complete(checkpoint: Path) -> None:
    """Declare a checkpoint whole."""
    (checkpoint / COMPLETE).touch()


def last_complete(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    found = [
        (int(match.group(1)), path)
        for path in folder.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and (path / COMPLETE).exists()
    ]
    return max(found)[1] if found else None
