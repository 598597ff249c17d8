"""recipe.NAME = w, recipe.NAME_FIELD = option: every registered penalty as keys of a recipe."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Self, get_type_hints

import odevit.objectives  # noqa: F401 (registers our own penalties)
from odevit.solver import PENALTIES, Penalty


class Penalised:
    """Base of recipe dataclasses with a weight NAME and an option NAME_FIELD for every penalty in `PENALTIES`.

    The keys are those of the penalties that are registered when a recipe is made: calling the class gives an instance
    of a subclass that has them. So a new penalty is one decorated class, and no recipe has to list it.
    """

    def __new__(cls, /, *_: Any, **__: Any) -> Self:
        # The subclass is a dataclass of its own; Python goes on with its __init__.
        kind: Any = cls
        return object.__new__(_with_penalties(kind, tuple(PENALTIES.items())))

    @property
    def weights(self) -> dict[str, float]:
        """The penalties that count, with their weights."""
        return {name: getattr(self, name) for name in self._names if getattr(self, name) > 0}

    @property
    def penalties(self) -> dict[str, Penalty]:
        """The same penalties, as the solver's loop takes them."""
        return {name: self._make(name) for name in self.weights}

    def penalty_problems(self, prefix: str) -> list[str]:
        """Everything that is wrong with weights and options, as sentences."""
        problems = []
        for name in self._names:
            weight = getattr(self, name)
            if not weight >= 0:
                problems.append(f"{prefix}.{name}={weight!r}; expected a weight >= 0")
            try:
                self._make(name)
            except ValueError as error:
                changed = [
                    f"{prefix}.{key}={getattr(self, key)!r}"
                    for key, option in _options(name, PENALTIES[name]).items()
                    if getattr(self, key) != option.default
                ]
                problems.append(f"{', '.join(changed)}: {error}")
        return problems

    @property
    def _names(self) -> list[str]:
        """The penalties of this recipe; one that was registered after it was made is not among them."""
        return [name for name in PENALTIES if hasattr(self, name)]

    def _make(self, name: str) -> Penalty:
        kind = PENALTIES[name]
        return kind(**{option.name: getattr(self, key) for key, option in _options(name, kind).items()})


def _options(name: str, kind: Any) -> dict[str, Field[Any]]:
    """The options of a penalty by their key."""
    return {f"{name}_{option.name}": option for option in fields(kind)} if is_dataclass(kind) else {}


@cache
def _with_penalties(base: Any, registered: tuple[tuple[str, type[Penalty]], ...]) -> Any:
    """The recipe class `base` with the keys of these penalties; itself when it has them already."""
    new: dict[str, tuple[Any, Any]] = {}
    for name, kind in registered:
        new[name] = (float, 0.0)
        for key, option in _options(name, kind).items():
            if option.default is MISSING:
                raise TypeError(f"the penalty {name!r} has an option {option.name!r} without a default; give it one")
            new[key] = (get_type_hints(kind)[option.name], option.default)
    for item in fields(base):
        new.pop(item.name, None)
    keys = [(key, kind, field(default=default)) for key, (kind, default) in new.items()]
    namespace = {"__doc__": base.__doc__, "__module__": base.__module__}
    return make_dataclass(base.__name__, keys, bases=(base,), namespace=namespace) if keys else base
