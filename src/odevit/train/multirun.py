"""Several runs through Hydra's multirun, with any of its launchers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from odevit.errors import ConfigError
from odevit.train.auto_config import auto_configure
from odevit.train.classifier import train_recipe
from odevit.train.compose import CONFIG_MODULE, CONFIG_NAME, compose_recipe, expand_data, expand_system, store_schema
from odevit.train.recipe import Recipe


def sweep(words: Sequence[str]) -> None:
    """`odevit train --multirun seed=0,1,2 hydra/launcher=...`: one run per combination."""
    store_schema(Recipe, CONFIG_NAME)
    command = "odevit train " + " ".join(words)

    @hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME)
    def one(config: DictConfig) -> None:
        recipe = cast(Recipe, OmegaConf.to_object(config))
        train_recipe(recipe, command=command)

    words, parser = expand_data(expand_system(words)), OverridesParser.create()
    keyed = [word for word in words if "=" in word and not word.startswith("-")]
    swept = [word for word in keyed if parser.parse_override(word).is_sweep_override() or word.startswith("hydra")]
    if several := [word for word in swept if word.startswith("system=")]:
        raise ConfigError(
            "the command line", [f"{several[0]} names several systems; odevit compare systems=a,b trains each of them"]
        )
    chosen = auto_configure([word for word in keyed if word not in swept], compose_recipe, swept=swept)
    print(*chosen.said, sep="\n", flush=True)
    # Hydra reads the command line itself; it must see the words without our verb, those with a key together.
    place = words.index(keyed[0]) if keyed else len(words)
    original = sys.argv
    sys.argv = [original[0], *words[:place], *chosen.words, *words[place:]]
    try:
        one()
    finally:
        sys.argv = original
