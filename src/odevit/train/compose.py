"""key=value ... -> recipe: the command line through Hydra's groups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

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
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.data.augment.policy import Augmentation
from odevit.errors import ConfigError, shortened, unknown_name, with_key_prefix
from odevit.solvers.penalties import PENALTIES
from odevit.train.recipe import MODEL_KEYS, SAMPLING_KEYS, Recipe, TrainRecipe
from odevit.train.recipe_keys import REMOVED, current_overrides

CONFIG_MODULE, CONFIG_NAME = "odevit.conf", "recipe"
ERRORS = (HydraException, OmegaConfBaseException)
DEPTH_OPTIONS, ATTENTION_OPTIONS = "model.depth_options", "model.attention_options"
GROUPS = ("model", "data", "train", "phases", "experiment", "system")
R = TypeVar("R", bound=Recipe)


def compose_recipe(overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that `odevit train OVERRIDES` would run; all errors of the overrides come together."""
    overrides = current_overrides(overrides)
    keys = given_keys(overrides)
    if "teacher" in keys and not keys & {"train", "experiment"}:
        overrides = ["train=finetune", *overrides]
    recipe = compose_as(Recipe, CONFIG_NAME, overrides)
    refuse_unused(keys, _unused_keys(recipe))
    return recipe


def _unused_keys(recipe: Recipe) -> dict[str, str]:
    """The keys that mean nothing to the model that is trained, and why."""
    drawn = {f"train.{key}" for key in SAMPLING_KEYS if getattr(recipe.train, key) != getattr(TrainRecipe(), key)}
    if recipe.teacher:
        unused_keys = dict.fromkeys(MODEL_KEYS, f"teacher={recipe.teacher!r} keeps the shape that it has")
        unused_keys |= {"init_from": "training starts from the teacher"}
        return unused_keys | dict.fromkeys(drawn, "a pretrained ViT goes one way")
    depth = recipe.model_settings().get("depth", OdeViTConfig.depth)
    if depth in DEPTHS and not DEPTHS[depth].has_trajectory:
        return dict.fromkeys(drawn, f"depth={depth} follows no trajectory, of which ways could be drawn")
    return {}


def given_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that are given a value."""
    return {key for key, _, value in (word.partition("=") for word in overrides) if value}


def refuse_unused(given: Iterable[str], unused_keys: Mapping[str, str]) -> None:
    """Raise what was typed and means nothing here: nobody who types it expects that nothing happens.

    Args:
        given: keys.
        unheard: keys, or groups of them, and why.
    """
    told = {key: why for key in given for name, why in unused_keys.items() if key == name or key.startswith(f"{name}.")}
    if told:
        raise ConfigError("the recipe", [f"{key}: {why}; leave it out" for key, why in sorted(told.items())])


def compose_as(kind: type[R], root: str, overrides: Sequence[str]) -> R:
    """A recipe of any kind, from its root among the yaml files, over the same groups.

    Hydra puts the files together. The keys are set here, one by one, so that all that is wrong is said at once, in our
    words, and so that text stays text: a folder may be called `nan`, `1e3` or `a=b`.
    """
    words = expand_depth(expand_data(expand_system(current_overrides(overrides))))
    own = groups_of(root)
    groups = [word for word in words if word.partition("=")[0] in own]
    try:
        config = files_together(kind, root, groups)
    except ERRORS as error:
        problems = [problem for group in groups for problem in _file_problems(kind, root, group)]
        raise ConfigError("the command line", problems or [str(error).splitlines()[0]]) from error
    types = types_of(kind, config)
    types |= {f"{DEPTH_OPTIONS}.{name}": Any for depth in DEPTHS.values() for name in depth.rules}
    types |= {f"{ATTENTION_OPTIONS}.{name}": Any for attention in ATTENTIONS.values() for name in attention.rules}
    strange = [word for word in words if (group := word.partition("=")[0]) in GROUPS and group not in own]
    problems = [f"{word}: there is no such choice here; expected one of {', '.join(own)}" for word in strange]
    keys = [word for word in words if word not in groups and word not in strange]
    problems += [problem for word in keys for problem in _set(config, word, types)]
    if problems:
        raise ConfigError("the command line", problems)
    with with_key_prefix("data.augmentation", [field.name for field in fields(Augmentation)]):
        try:
            return cast(R, OmegaConf.to_object(config))
        except ERRORS as error:  # an interpolation that leads nowhere
            raise ConfigError("the command line", [str(error).splitlines()[0]]) from error


@cache
def groups_of(root: str) -> tuple[str, ...]:
    """The groups that a root among the yaml files chooses from."""
    defaults = yaml.safe_load(Path(str(files(CONFIG_MODULE))).joinpath(f"{root}.yaml").read_text())["defaults"]
    return tuple(group for entry in defaults if isinstance(entry, dict) for group in entry)


def store_schema(kind: type[Recipe], root: str) -> None:
    """Make the dataclass the schema: yaml files and overrides are checked against its keys and types.

    Done anew for other penalties, because its keys are those of the ones that are registered by now.
    """
    ConfigStore.instance().store(name=f"{root}_schema", node=kind)


def files_together(kind: Any, root: str, groups: Sequence[str]) -> Any:
    """A root among the yaml files with the choices of its groups, to be changed by whoever asks."""
    return deepcopy(_files_together(kind, root, tuple(groups), tuple(PENALTIES.items())))


@cache
def _files_together(kind: Any, root: str, groups: tuple[str, ...], penalties: Any) -> Any:
    """By Hydra, which takes a tenth of a second, and a command asks for the same files several times."""
    store_schema(kind, root)
    # Hydra keeps its state in a global; leave none behind, and do not trip over someone else's.
    GlobalHydra.instance().clear()
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        return compose(root, list(groups))


def expand_data(overrides: Sequence[str]) -> list[str]:
    """`data=` takes names, folders and hub ids; only the names are files of a Hydra group."""
    names, words = options("data"), []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "data" and value not in names:
            words += ["data=custom", f"data.source={quoted(value)}"]
        else:
            words.append(word)
    return words


def expand_system(overrides: Sequence[str]) -> list[str]:
    """`system=NAME` draws the ways that its own file names, and none that a training or an experiment would draw."""
    plain, off = TrainRecipe(), list[str]()
    for given in overrides:
        key, _, name = given.partition("=")
        if key == "system" and name != "none" and name in options("system"):
            said = yaml.safe_load((_folder("system") / f"{name}.yaml").read_text()).get("train", {})
            off += [f"train.{part}={word(getattr(plain, part))}" for part in SAMPLING_KEYS if part not in said]
    return [*off, *overrides]


def expand_depth(overrides: Sequence[str]) -> list[str]:
    """`depth=NAME depth.OPTION=VALUE`, as one says it, for the keys of the model that they are."""
    begins = {"depth=": "model.depth=", "depth.": f"{DEPTH_OPTIONS}."}
    return [begins[word[:6]] + word[6:] if word[:6] in begins else word for word in overrides]


def quoted(value: str) -> str:
    """A text that Hydra takes as it is."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def word(value: Any) -> str:
    """A value as it is typed: `true`, `[4,8]`, or the text itself."""
    is_text = not isinstance(value, bool | list | tuple | None)
    return str(value) if is_text else json.dumps(value, default=str, separators=(",", ":"))


def options(group: str) -> dict[str, str]:
    """The files of a Hydra group, by name, with the first sentence of what each says about itself."""
    folder = _folder(group)
    texts = {path.relative_to(folder).with_suffix("").as_posix(): path.read_text() for path in folder.rglob("*.yaml")}
    said = {name: " ".join(re.findall(r"^# (?!@|odevit )(.*)", text, flags=re.M)) for name, text in texts.items()}
    return {name: re.split(r"(?<=\.)(?<!\bal\.) |[:;] ", text)[0] for name, text in said.items()}


def _folder(group: str) -> Path:
    return Path(str(files(CONFIG_MODULE))) / group


def types_of(kind: type[Any], config: Any, prefix: str = "") -> dict[str, Any]:
    """The type of every key of a recipe: {"seed": int, "train.steps": list[int], ...}."""
    types: dict[str, Any] = {}
    owner = kind()  # penalties add their keys when a recipe is made
    for name, hint in get_type_hints(type(owner)).items():
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


def _file_problems(kind: type[Recipe], root: str, group: str) -> list[str]:
    key, _, value = group.partition("=")
    try:
        files_together(kind, root, [group])
    except ERRORS:
        return [unknown_name(key, value, options(key))]
    return []


def _set(config: Any, word: str, types: Mapping[str, Any]) -> list[str]:
    """Set what `word` says, key=value; a sentence about what is wrong with it otherwise."""
    key, equals, text = word.partition("=")
    if key not in types and (plain := key.lstrip("+~")) in {*types, *GROUPS}:
        return [f"{word}: keys and groups are typed as they are; expected {plain}=VALUE"]
    if key in REMOVED:
        return [f"{word}: this option was removed after version 0.2; leave it out"]
    if not equals or key not in types:
        return [unknown_name("key", key, types) if equals else f"{word!r} is no key=value"]
    parts = get_args(types[key]) if isinstance(types[key], UnionType) else (types[key],)
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    try:
        if str in parts and not is_quoted and not (bool in parts and text.lower() in ("true", "false")):
            value: Any = None if NoneType in parts and text in ("null", "none") else text
        else:
            override = _parser().parse_override(word)
            if override.is_sweep_override():
                return [f"{word} names several values; expected one (odevit train --multirun takes several)"]
            value = override.value()
        if parts == (bool,) and not isinstance(value, bool):
            raise ValueError  # OmegaConf takes 7 for true
        # Which options there are depends on the depth and the attention, so that no schema has them.
        OmegaConf.update(config, key, value, force_add=key.startswith((DEPTH_OPTIONS, ATTENTION_OPTIONS)))
    except (*ERRORS, ValueError):
        return [f"{word}; expected {' or '.join(_wanted(part) for part in parts if part is not NoneType)}"]
    return []


def _wanted(kind: Any) -> str:
    """A type in words."""
    if is_dataclass(kind):
        return f"its keys one by one: {shortened([field.name for field in fields(kind)])}"
    if get_origin(kind) is list:
        return f"several in brackets, [...], each {_wanted(get_args(kind)[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
