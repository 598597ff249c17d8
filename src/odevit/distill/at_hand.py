"""RUN -> its teacher, where that is at hand; image -> what the layers of a teacher look at."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import yaml
from huggingface_hub import try_to_load_from_cache

from odevit.analysis.looking import AttentionPath, attention_path
from odevit.distill.teacher import Teacher
from odevit.model import Askable
from odevit.tokens import Pixels, Tokens


def teacher_of(run: str | os.PathLike[str]) -> Teacher | None:
    """The teacher of a distilled student: RUN/teacher, or the one that RUN/recipe.yaml names.

    None for a run without a teacher, or where its teacher is not at hand; nothing is downloaded.
    """
    folder = Path(run)
    if (folder / "teacher/config.json").is_file():
        return Teacher(folder / "teacher")
    recipe = folder / "recipe.yaml"
    # Only a distillation has an alignment; the recipe of a classifier may name a teacher for its head alone.
    settings = yaml.safe_load(recipe.read_text()) if recipe.is_file() else {}
    named = settings.get("teacher") if "alignment" in settings else None
    return Teacher(named) if named and _is_at_hand(named) else None


@torch.no_grad()
def teacher_attention(teacher: Teacher, pixels: Pixels) -> AttentionPath:
    """a of each layer of a teacher; the layers 1, ..., L stand in the place of time."""
    output, layout, model = teacher(pixels, attentions=True), teacher.layout(pixels), teacher.model
    assert output.attentions is not None  # asked for

    def reading(state: Tokens) -> tuple[torch.Tensor, str]:
        """CLS where there is one, otherwise all patches alike."""
        read, query = (layout.cls, "CLS") if layout.has_cls else (layout.patches, "mean of patches")
        weights = state.new_zeros(state.shape[:2])
        weights[:, read] = 1.0 / (read.stop - read.start)
        return weights, query

    how = model.reading if isinstance(model, Askable) else reading
    return attention_path(range(1, teacher.num_layers + 1), output.states[:-1], output.attentions, layout, how)


def _is_at_hand(source: str) -> bool:
    """Whether a model lies in a folder or in the hub's cache."""
    if Path(source).is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except ValueError:  # neither a folder nor a name that the hub could know
        return False
