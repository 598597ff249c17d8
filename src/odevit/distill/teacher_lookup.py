"""RUN -> its teacher, where that is at hand."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from odevit.distill.teacher import Teacher
from odevit.train.folder import read_recipe


def teacher_of(run: str | os.PathLike[str]) -> Teacher | None:
    """The teacher of a distilled student: RUN/teacher, or the one that RUN/recipe.yaml names.

    None for a run without a teacher, or where its teacher is not at hand; nothing is downloaded.
    """
    source = name_of_teacher(run)
    return None if source is None else Teacher(source)


def name_of_teacher(run: str | os.PathLike[str]) -> str | None:
    """The folder or the hub's id that `teacher_of` would load; None where there is none, or none at hand."""
    folder = Path(run)
    if (folder / "teacher/config.json").is_file():
        return str(folder / "teacher")
    # Only a distillation has an alignment; the recipe of a classifier may name a teacher for its head alone.
    settings = read_recipe(run)
    named = settings.get("teacher") if "alignment" in settings else None
    return str(named) if named and _is_at_hand(named) else None


def _is_at_hand(source: str) -> bool:
    """Whether a model lies in a folder or in the hub's cache."""
    if Path(source).is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except ValueError:  # neither a folder nor a name that the hub could know
        return False
