"""key=value ... -> recipe: the command line through Hydra's groups."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from odevit.errors import ConfigError, unknown_name
from odevit.train.recipe import Recipe

CONFIG_MODULE, CONFIG_NAME = "odevit.conf", "recipe"
ERRORS = (HydraException, OmegaConfBaseException)
GROUPS = ("model", "data", "train", "experiment")
R = TypeVar("R", bound=Recipe)


def compose_recipe(overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that `odevit train OVERRIDES` would run; all errors of the overrides come together."""
    return compose_as(Recipe, CONFIG_NAME, overrides)


def compose_as(kind: type[R], root: str, overrides: Sequence[str]) -> R:
    """A recipe of any kind, from its root among the yaml files, over the same groups."""
    store_schema(kind, root)
    # Hydra keeps its state in a global; leave none behind, and do not trip over someone else's.
    GlobalHydra.instance().clear()
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        words = data_words(overrides)
        try:
            return cast(R, OmegaConf.to_object(compose(root, list(words))))
        except ERRORS as error:
            problems = _problems(root, words) or [str(error).splitlines()[0]]
            raise ConfigError("the command line", problems) from error


def store_schema(kind: type[Recipe], root: str) -> None:
    """Make the dataclass the schema: yaml files and overrides are checked against its keys and types.

    Done anew each time, because its keys are those of the penalties that are registered by now.
    """
    ConfigStore.instance().store(name=f"{root}_schema", node=kind)


def data_words(overrides: Sequence[str]) -> list[str]:
    """`data=` takes names, folders and hub ids; only the names are files of a Hydra group."""
    names, words = options("data"), []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "data" and value not in names:
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            words += ["data=custom", f"data.source='{quoted}'"]
        else:
            words.append(word)
    return words


def options(group: str) -> list[str]:
    """The files of a Hydra group, by name."""
    folder = Path(str(files(CONFIG_MODULE))) / group
    return [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")]


def _problems(root: str, words: Sequence[str]) -> list[str]:
    """What is wrong with each word on its own; wrong choices of files come before wrong keys."""
    groups = [word for word in words if word.partition("=")[0] in GROUPS]
    problems: list[str] = []
    for group in groups:
        try:
            compose(root, [group])
        except ERRORS:
            key, _, value = group.partition("=")
            problems.append(unknown_name(key, value, options(key)))
    if problems:
        return problems
    known, parser = _keys(compose(root, groups)), OverridesParser.create()
    for word in words:
        if word not in groups:
            try:
                key = parser.parse_override(word).key_or_group
                if key not in known:
                    problems.append(unknown_name("key", key, known))
                else:
                    compose(root, [*groups, word])
            except ERRORS as error:
                problems.append(f"{word}: {str(error).splitlines()[0]}")
    return problems


def _keys(config: Any, prefix: str = "") -> set[str]:
    keys: set[str] = set()
    for key in config:
        keys.add(f"{prefix}{key}")
        if OmegaConf.is_dict(config) and not OmegaConf.is_missing(config, key) and OmegaConf.is_dict(config[key]):
            keys |= _keys(config[key], f"{prefix}{key}.")
    return keys
