"""L = cross entropy + sum_i w_i r_i: the loss of a training step, and the keys of a recipe for its penalties."""

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
    of a subclass that has them. So a new penalty is one decorated class; no recipe has to list it.
    """

    def __new__(cls, /, *_: Any, **__: Any) -> Self:
        # The subclass is a dataclass of its own; Python goes on with its __init__.
        kind: Any = cls
        return object.__new__(_with_penalties(kind, tuple(PENALTIES.items())))

    @property
    def weights(self) -> dict[str, float]:
        """The penalties with a weight above 0, and their weights."""
        return {name: getattr(self, name) for name in self._names if getattr(self, name) > 0}

    @property
    def penalties(self) -> dict[str, Penalty]:
        """The same penalties, for the solver's loop."""
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
        """The penalties of this recipe, without those that were registered after it was made."""
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
    """The output of a network that returns only a loss: the loss of a batch, and its parts without gradient."""

    loss: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingLoss:
    """The network's own loss of a batch, plus what its trajectory costs: penalties and their weights by name.

    With `adjoint`, gradients come from the adjoint equation. Evaluations and parts of the loss are collected per batch
    until `pop_means` reads them.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    adjoint: bool = False
    evaluations: list[int] = field(default_factory=list, repr=False, compare=False)
    parts: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    """Of the last batch, weighted and without gradient; nothing where the loss has no parts."""
    collected: dict[str, list[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, recipe: Penalised) -> TrainingLoss:
        """The loss with the penalties of a recipe."""
        return cls(recipe.weights, recipe.penalties, bool(getattr(recipe, "adjoint", False)))

    def __call__(self, network: Any, batch: Mapping[str, Any], solver_config: SolverConfig | None) -> Tensor:
        """The loss of a batch, integrated with this solver config."""
        # A network does not have to accept penalties if there are none.
        options: dict[str, Any] = {"penalties": self.penalties} if self.penalties else {}
        if self.adjoint:
            options["adjoint"] = True
        output = network(**batch, solver_config=solver_config, **options)
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
        """Set the parts of the last batch's loss."""
        self.parts.clear()
        self.parts.update(parts)

    def accumulate(self) -> None:
        """Collect the parts of the last batch, without waiting for the device."""
        for name, part in self.parts.items():
            # A replayed step overwrites them.
            self.collected.setdefault(name, []).append(part.clone())

    def pop_means(self) -> dict[str, float]:
        """The mean number of evaluations and the mean of every part, over the batches since the last call."""
        means = {"nfe": sum(self.evaluations) / len(self.evaluations)} if self.evaluations else {}
        means |= {f"loss_{name}": torch.stack(values).float().mean().item() for name, values in self.collected.items()}
        self.evaluations.clear()
        self.collected.clear()
        return means
