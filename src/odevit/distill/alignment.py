"""tau_1 < ... < tau_L = 1: the fraction of the horizon at which the student is compared with each teacher layer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from odevit.errors import ConfigError, unknown_name

KINDS = ("distance", "arc", "uniform")


@torch.no_grad()
def layer_distances(batches: Iterable[Sequence[Tensor]], tokens: slice = slice(None)) -> tuple[float, ...]:
    """d_l = mean |h_l - h_{l-1}| over samples and tokens: how far each layer of a teacher moves its tokens.

    Args:
        batches: hidden states h_0..h_L [batch, token, dim] of each batch.
        tokens: which tokens count; the paper uses CLS alone.
    """
    sums: list[float] = []
    count = 0
    for states in batches:
        moved = [(after[:, tokens] - before[:, tokens]).norm(dim=-1) for before, after in pairwise(states)]
        sums = [a + b.double().sum().item() for a, b in zip(sums or [0.0] * len(moved), moved, strict=True)]
        count += moved[0].numel() if moved else 0
    if count == 0:
        raise ValueError("no hidden states to measure distances on: the teacher has no layers, or there are no images")
    return tuple(total / count for total in sums)


@dataclass(frozen=True)
class Alignment:
    """The fractions tau_l of the student's horizon that belong to the teacher's layers.

    Args:
        kind: `distance`: shares softmax(d_l / (T mean d)), as in the paper (Sec. 4); `arc`: shares d_l / sum d, so
            that the student moves at constant speed; `uniform`: shares 1/L.
        distances: d_l, measured by `layer_distances`; with `uniform` only their number matters.
        temperature: T of `distance`, in units of the mean distance: small ones give the longest layer all the steps,
            large ones are uniform. The released constant is 30, which is 2.66 for the distances released with it.
    """

    kind: str
    distances: tuple[float, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in KINDS:
            problems.append(unknown_name("alignment", self.kind, KINDS))
        if not self.distances:
            problems.append("there are no distances; measure them with layer_distances on a teacher's states")
        elif not all(math.isfinite(d) and d >= 0 for d in self.distances) or sum(self.distances) == 0:
            problems.append(f"distances={self.distances}; expected finite numbers >= 0, not all of them 0")
        if not self.temperature > 0:
            problems.append(f"temperature={self.temperature}; expected a number > 0")
        if problems:
            raise ConfigError("the alignment", problems)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the horizon that belongs to each layer; they sum to 1."""
        count, total = len(self.distances), sum(self.distances)
        if self.kind == "uniform":
            return (1.0 / count,) * count
        if self.kind == "arc":
            return tuple(d / total for d in self.distances)
        scaled = torch.tensor(self.distances, dtype=torch.float64) / (self.temperature * total / count)
        return tuple(scaled.softmax(0).tolist())

    @property
    def fractions(self) -> tuple[float, ...]:
        """tau_1 < ... < tau_L = 1."""
        return tuple(torch.tensor(self.shares, dtype=torch.float64).cumsum(0).tolist())

    def indices(self, steps: int) -> tuple[int, ...]:
        """Step numbers 1 <= n_1 < ... < n_L = steps, as near to the fractions as strictly increasing ones can be."""
        count = len(self.distances)
        if count > steps:
            raise ValueError(
                f"{count} checkpoints (the teacher's layers) do not fit into {steps} steps; "
                f"take at least {count} steps, or match the last state alone (objective.path=last, with phases=none)"
            )
        indices: list[int] = []
        for number, fraction in enumerate(self.fractions):
            nearest = math.floor(fraction * steps + 0.5)
            # After the step of the layer before, and early enough to leave a step for every later layer.
            earliest = indices[-1] + 1 if indices else 1
            latest = steps - (count - 1 - number)
            indices.append(min(max(nearest, earliest), latest))
        indices[-1] = steps
        return tuple(indices)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Alignment:
        """Read what `save` wrote."""
        values = json.loads(path.read_text())
        return cls(values["kind"], tuple(values["distances"]), values["temperature"])
