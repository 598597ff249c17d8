"""Several runs through Hydra's multirun, with any of its launchers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import hydra
from omegaconf import DictConfig, OmegaConf

from odevit.train.classifier import train_recipe
from odevit.train.compose import CONFIG_MODULE, CONFIG_NAME, data_words, store_schema
from odevit.train.recipe import Recipe


def sweep(words: Sequence[str]) -> None:
    """`odevit train --multirun seed=0,1,2 hydra/launcher=...`: one run per combination."""
    store_schema(Recipe, CONFIG_NAME)

    @hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME)
    def one(config: DictConfig) -> None:
        recipe = cast(Recipe, OmegaConf.to_object(config))
        train_recipe(recipe, command="odevit train " + " ".join(words))

    # Hydra reads the command line itself; it must see the words without our verb.
    original = sys.argv
    sys.argv = [original[0], *data_words(words)]
    try:
        one()
    finally:
        sys.argv = original
