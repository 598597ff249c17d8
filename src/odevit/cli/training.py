"""odevit train: a recipe -> a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odevit.cli.recipes import RecipeVerb, words_of
from odevit.train.classifier import train_recipe
from odevit.train.compose import compose_recipe
from odevit.train.multirun import sweep
from odevit.train.recipe import Recipe


def train(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Train a model and give back its folder.

    On the command line, --multirun seed=0,1,2 trains one model per combination, through Hydra and its launchers.

    Args:
        overrides: words as on the command line: `["experiment=fast/cifar10", "train.epochs=10"]`.
        settings: the same as keywords: `train(experiment="digits", seed=1, **{"train.epochs": 10})`.
    """
    words = words_of(overrides, settings)
    recipe, command = compose_recipe(words), shlex.join(["odevit", "train", *words])
    if recipe.head_only:
        from odevit.distill.head import train_head

        return train_head(recipe, command)
    if recipe.teacher:
        raise ValueError(
            "teacher= was given to train; pass head_only=true to give it a new head, or use odevit distill"
        )
    return train_recipe(recipe, command)


VERB = RecipeVerb(
    "train", train, lambda folder: None, "odevit train experiment=fast/cifar10 train.epochs=10 seed=1", Recipe, sweep
)
