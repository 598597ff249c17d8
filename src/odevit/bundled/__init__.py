"""Models that come with the package: `from_pretrained("cifar10")` needs no network."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def bundled_models() -> dict[str, Path]:
    """The models by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/config.json"))}
