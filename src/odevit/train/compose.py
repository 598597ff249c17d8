"""key=value ... -> recipe: Hydra puts the files together, the overrides are set here, and errors become sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from odevit.core.attention import ATTENTIONS
from odevit.core.base import DEPTHS
from odevit.data.augment.policy import Augmentation
from odevit.errors import ConfigError, shortened, unknown_name, with_key_prefix
from odevit.solvers.penalties import PENALTIES
from odevit.train.recipe import SAMPLING_KEYS, Recipe, TrainRecipe
from odevit.train.recipe_keys import REMOVED, current_overrides, given_keys, quoted, word

CONFIG_MODULE = "odevit.conf"
ERRORS = (HydraException, OmegaConfBaseException)
DEPTH_OPTIONS, ATTENTION_OPTIONS = "model.depth_options", "model.attention_options"
GROUPS = ("model", "data", "train", "phases", "experiment", "system")
R = TypeVar("R", bound=Recipe)


def compose_recipe(overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that `odevit train OVERRIDES` runs."""
    return compose_as(Recipe, overrides)


def compose_as(kind: type[R], overrides: Sequence[str] = ()) -> R:
    """A recipe of any kind from its files and overrides. One error lists everything that is wrong with the overrides.

    Hydra puts the files together. The keys are set here, one by one, so that all problems are found at once, and so
    that text stays text: a folder may be called `nan`, `1e3` or `a=b`.
    """
    overrides = current_overrides(overrides)
    given = given_keys(overrides)
    unused = kind.unused_overrides(given)
    try:
        recipe = _fill(kind, expand_depth(expand_data(expand_system(kind.expand(overrides)))))
    except ConfigError:
        # Without phases their keys are unknown; say why there are none.
        refuse_unused([key for key in given if key.startswith("phases.")], unused)
        raise
    refuse_unused(given, unused | recipe.unused_keys())
    return recipe


def refuse_unused(given: Iterable[str], unused: Mapping[str, str]) -> None:
    """Raise an error that lists the keys which were given and have no effect.

    Args:
        given: keys.
        unused: keys, or groups of them, and why they have no effect.
    """
    found = {key: why for key in given for name, why in unused.items() if key == name or key.startswith(f"{name}.")}
    if found:
        raise ConfigError("the recipe", [f"{key}: {why}; leave it out" for key, why in sorted(found.items())])


def _fill(kind: type[R], overrides: Sequence[str]) -> R:
    own = groups_of(kind.root)
    groups = [override for override in overrides if override.partition("=")[0] in own]
    try:
        config = merge_files(kind, groups)
    except ERRORS as error:
        problems = [problem for group in groups for problem in _file_problems(kind, group)]
        raise ConfigError("the command line", problems or [str(error).splitlines()[0]]) from error
    types = types_of(kind, config)
    types |= {f"{DEPTH_OPTIONS}.{name}": Any for depth in DEPTHS.values() for name in depth.rules}
    types |= {f"{ATTENTION_OPTIONS}.{name}": Any for attention in ATTENTIONS.values() for name in attention.rules}
    foreign = [text for text in overrides if (group := text.partition("=")[0]) in GROUPS and group not in own]
    problems = [f"{text}: there is no such group here; expected one of {', '.join(own)}" for text in foreign]
    keys = [override for override in overrides if override not in groups and override not in foreign]
    problems += [problem for override in keys for problem in _set(config, override, types)]
    if problems:
        raise ConfigError("the command line", problems)
    with with_key_prefix("data.augmentation", [field.name for field in fields(Augmentation)]):
        try:
            return cast(R, OmegaConf.to_object(config))
        except ERRORS as error:  # an interpolation that leads nowhere
            raise ConfigError("the command line", [str(error).splitlines()[0]]) from error


@cache
def groups_of(root: str) -> tuple[str, ...]:
    """The groups in the defaults list of a root file."""
    defaults = yaml.safe_load(Path(str(files(CONFIG_MODULE))).joinpath(f"{root}.yaml").read_text())["defaults"]
    return tuple(group for entry in defaults if isinstance(entry, dict) for group in entry)


def store_schema(kind: type[Recipe]) -> None:
    """Make the dataclass the schema: Hydra checks files against its keys and types.

    Stored again before every composition, because a penalty may have been registered since, which adds keys.
    """
    ConfigStore.instance().store(name=f"{kind.root}_schema", node=kind)


def merge_files(kind: Any, groups: Sequence[str]) -> Any:
    """The root file of a recipe with the chosen files of its groups, as a configuration that may be changed."""
    return deepcopy(_merge_files(kind, tuple(groups), tuple(PENALTIES.items())))


@cache
def _merge_files(kind: Any, groups: tuple[str, ...], penalties: Any) -> Any:
    store_schema(kind)
    # Hydra keeps its state in a global; leave none behind, and ignore that of others.
    GlobalHydra.instance().clear()
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        return compose(kind.root, list(groups))


def expand_data(overrides: Sequence[str]) -> list[str]:
    """`data=` takes names, folders and hub ids; only the names are files of a Hydra group."""
    names, expanded = options("data"), []
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "data" and value not in names:
            expanded += ["data=custom", f"data.source={quoted(value)}"]
        else:
            expanded.append(override)
    return expanded


def expand_system(overrides: Sequence[str]) -> list[str]:
    """`system=NAME` samples solvers as its own file says, whatever a training or an experiment would sample."""
    defaults, off = TrainRecipe(), list[str]()
    for override in overrides:
        key, _, name = override.partition("=")
        if key == "system" and name != "none" and name in options("system"):
            own = yaml.safe_load((_folder("system") / f"{name}.yaml").read_text()).get("train", {})
            off += [f"train.{part}={word(getattr(defaults, part))}" for part in SAMPLING_KEYS if part not in own]
    return [*off, *overrides]


def expand_depth(overrides: Sequence[str]) -> list[str]:
    """`depth=NAME depth.OPTION=VALUE`, the short form, as the keys of the model that they are."""
    prefixes = {"depth=": "model.depth=", "depth.": f"{DEPTH_OPTIONS}."}
    return [prefixes[text[:6]] + text[6:] if text[:6] in prefixes else text for text in overrides]


def options(group: str) -> dict[str, str]:
    """The files of a Hydra group by name, each with the first sentence of its comment."""
    folder = _folder(group)
    texts = {path.relative_to(folder).with_suffix("").as_posix(): path.read_text() for path in folder.rglob("*.yaml")}
    comments = {name: " ".join(re.findall(r"^# (?!@|odevit )(.*)", text, flags=re.M)) for name, text in texts.items()}
    return {name: re.split(r"(?<=\.)(?<!\bal\.) |[:;] ", text)[0] for name, text in comments.items()}


def _folder(group: str) -> Path:
    return Path(str(files(CONFIG_MODULE))) / group


def types_of(kind: type[Any], config: Any, prefix: str = "") -> dict[str, Any]:
    """The type of every key of a recipe: {"seed": int, "train.steps": list[int], ...}."""
    types: dict[str, Any] = {}
    owner = kind()  # penalties add their keys when a recipe is made
    for name, hint in get_type_hints(type(owner)).items():
        if get_origin(hint) is ClassVar:
            continue
        types[f"{prefix}{name}"] = hint
        inner = {name: hint}
        if get_origin(hint) is dict:  # its keys are those that the files have
            inner = {f"{name}.{key}": get_args(hint)[1] for key in config[name]}
        for key, part in inner.items():
            if is_dataclass(part):
                types |= types_of(cast(type[Any], part), OmegaConf.select(config, key), f"{prefix}{key}.")
    return types


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def is_sweep(override: str) -> bool:
    """Whether an override names several values, `seed=0,1,2`, or is one of Hydra's own."""
    return override.startswith("hydra") or _parser().parse_override(override).is_sweep_override()


def _file_problems(kind: type[Recipe], group: str) -> list[str]:
    key, _, value = group.partition("=")
    try:
        merge_files(kind, [group])
    except ERRORS:
        return [unknown_name(key, value, options(key))]
    return []


def _set(config: Any, override: str, types: Mapping[str, Any]) -> list[str]:
    """Set what `override` says, key=value; a sentence about what is wrong with it otherwise."""
    key, equals, text = override.partition("=")
    if key not in types and (plain := key.lstrip("+~")) in {*types, *GROUPS}:
        return [f"{override}: keys and groups are typed as they are; expected {plain}=VALUE"]
    if key in REMOVED:
        return [f"{override}: this option was removed after version 0.2; leave it out"]
    if not equals or key not in types:
        return [unknown_name("key", key, types) if equals else f"{override!r} is no key=value"]
    parts = get_args(types[key]) if isinstance(types[key], UnionType) else (types[key],)
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    try:
        if str in parts and not is_quoted and not (bool in parts and text.lower() in ("true", "false")):
            value: Any = None if NoneType in parts and text in ("null", "none") else text
        else:
            parsed = _parser().parse_override(override)
            if parsed.is_sweep_override():
                return [f"{override} names several values; expected one (odevit train --multirun takes several)"]
            value = parsed.value()
        if parts == (bool,) and not isinstance(value, bool):
            raise ValueError  # OmegaConf takes 7 for true
        # Which options there are depends on the depth and the attention, so that no schema has them.
        OmegaConf.update(config, key, value, force_add=key.startswith((DEPTH_OPTIONS, ATTENTION_OPTIONS)))
    except (*ERRORS, ValueError):
        return [f"{override}; expected {' or '.join(_describe(part) for part in parts if part is not NoneType)}"]
    return []


def _describe(kind: Any) -> str:
    """A type in words."""
    if is_dataclass(kind):
        return f"its keys one by one: {shortened([field.name for field in fields(kind)])}"
    if get_origin(kind) is list:
        return f"several in brackets, [...], each {_describe(get_args(kind)[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
