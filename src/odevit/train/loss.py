"""L = cross entropy + sum_i w_i r_i: what a step of training makes smaller, and the keys of a recipe that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Self, get_type_hints

import torch
from torch import Tensor

import odevit.objectives  # noqa: F401 (registers our own penalties)
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, Expected, real
from odevit.solvers.penalties import PENALTIES, Penalty

WEIGHT = Expected("a weight >= 0", real(minimum=0).accepts)


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
            problems += WEIGHT.problem(f"{prefix}.{name}", getattr(self, name))
            try:
                self._make(name)
            except ConfigError as error:
                problems += [f"{prefix}.{name}_{problem}" for problem in error.problems]
            except ValueError as error:
                options = _options(name, PENALTIES[name])
                changed = [key for key, option in options.items() if getattr(self, key) != option.default]
                problems.append(f"{', '.join(f'{prefix}.{key}={getattr(self, key)!r}' for key in changed)}: {error}")
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
    listed = fields(kind) if is_dataclass(kind) else ()
    fixed = getattr(kind, "fixed_options", ())
    return {f"{name}_{option.name}": option for option in listed if option.name not in fixed}


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


@dataclass(frozen=True)
class BatchLoss:
    """What a network without an output of its own gives for a batch: its loss, and the parts of it without gradient."""

    loss: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingLoss:
    """The network's own loss of a batch, plus what its trajectory costs: penalties and their weights by name.

    With `adjoint`, gradients come from the adjoint equation. What each batch cost, and the parts of its loss that are
    noted, are kept until they are told.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    adjoint: bool = False
    evaluations: list[int] = field(default_factory=list, repr=False, compare=False)
    parts: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    """Of the last batch, weighted and without gradient; nothing where the loss has no parts."""
    noted: dict[str, list[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, recipe: Penalised) -> TrainingLoss:
        """The penalties whose weight is not 0."""
        return cls(recipe.weights, recipe.penalties, bool(getattr(recipe, "adjoint", False)))

    def __call__(self, network: Any, batch: Mapping[str, Any], solver_config: SolverConfig | None) -> Tensor:
        """L of a batch that goes this way."""
        # A network whose recipe has no penalties need not accept any.
        asked: dict[str, Any] = {"penalties": self.penalties} if self.penalties else {}
        if self.adjoint:
            asked["adjoint"] = True
        output = network(**batch, solver_config=solver_config, **asked)
        loss: Tensor = output.loss
        parts = dict(getattr(output, "parts", {}))
        if (trajectory := getattr(output, "trajectory", None)) is not None:
            self.evaluations.append(trajectory.stats.nfe)
            parts |= {name: cost.detach() for name, cost in trajectory.costs.items()}  # of a depth; the loss has them
        for name, weight in self.weights.items():
            penalty = weight * output.penalties[name]
            loss, parts[name] = loss + penalty, penalty.detach()
        self.set_parts(parts)
        return loss

    def set_parts(self, parts: Mapping[str, Tensor]) -> None:
        """These are the parts of the last batch's loss."""
        self.parts.clear()
        self.parts.update(parts)

    def accumulate(self) -> None:
        """Keep the parts of the last batch until they are told; the host does not wait for them."""
        for name, part in self.parts.items():
            # A replayed step writes the next ones into the same place.
            self.noted.setdefault(name, []).append(part.clone())

    def pop_means(self) -> dict[str, float]:
        """The mean number of evaluations and the mean of every part, of the batches since it was last asked."""
        told = {"nfe": sum(self.evaluations) / len(self.evaluations)} if self.evaluations else {}
        told |= {f"loss_{name}": torch.stack(values).float().mean().item() for name, values in self.noted.items()}
        self.evaluations.clear()
        self.noted.clear()
        return told
