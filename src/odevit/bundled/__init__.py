"""Models that come with the package: `from_pretrained("cifar10")` needs no network."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from transformers.utils import hub

FOLDER = Path(__file__).parent


def bundled_models() -> dict[str, Path]:
    """The models by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/config.json"))}


def bundled_or(name: Any) -> Any:
    """The folder of a bundled model; any other name, and one that is a folder, unchanged."""
    return name if name is None or Path(name).is_dir() else bundled_models().get(str(name), name)


def register_bundled_names() -> None:
    """Let transformers find bundled models by their names: Auto classes, processors, configurations, pipelines.

    transformers knows folders and ids of the hub, and has no registry for others, but it finds every file through one
    function. That function is wrapped here; nothing is copied into a cache and no network is used. It may be called
    twice.
    """
    look_up = hub.cached_files
    if hasattr(look_up, "__wrapped__"):
        return

    @functools.wraps(look_up)
    def cached_files(path_or_repo_id: Any, *args: Any, **kwargs: Any) -> Any:
        return look_up(bundled_or(path_or_repo_id), *args, **kwargs)

    hub.cached_files = cached_files
