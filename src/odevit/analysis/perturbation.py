"""d(t) = |x'(t) - x(t)|: the distance between two paths that differ at first in one patch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.base import frozen, integrate
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, real
from odevit.objectives.vectors import random_normal
from odevit.tokens import Pixels, TokenLayout, Tokens

KINDS = ("token", "picture")
"""What is changed: the patch's token at t = 0, or the patch of the picture itself."""


@dataclass(frozen=True)
class Divergence:
    """Two paths and the distance d(t) = |x'(t) - x(t)| between them, over all tokens.

    Args:
        kind: `token`: x' has the same equation and another start, so that a contracting field brings the two together.
            `picture`: x' belongs to another image; with a leak it has an equation and a rest point of its own.
        times: t_0, ..., t_N.
        states, others: x(t_n) and x'(t_n).
        distance: d(t_n) [time].
        size: |x(t_n)| [time], the scale of the distances.
    """

    kind: str
    times: tuple[float, ...]
    states: tuple[Tokens, ...]
    others: tuple[Tokens, ...]
    distance: Tensor
    size: Tensor

    @property
    def rate(self) -> float:
        """1/t log( d(t) / d(0) ) at the end: the growth rate of this perturbation; minus infinity if the paths meet."""
        first, last = float(self.distance[0]), float(self.distance[-1])
        if first <= 0.0:
            return 0.0
        return math.log(last / first) / self.times[-1] if last > 0.0 else -math.inf

    @property
    def meets(self) -> bool:
        """Whether the paths end nearer to each other than they began."""
        return bool(self.distance[-1] < self.distance[0])


@torch.no_grad()
def perturb_patch(
    model: ImageModel,
    pixels: Pixels,
    patch: tuple[int, int],
    solver_config: SolverConfig | None = None,
    *,
    kind: str = "token",
    strength: float = 1.0,
    seed: int = 0,
) -> Divergence:
    """The path of an image, and a path that differs from it at first in one patch.

    Args:
        model: a model with a trajectory.
        pixels: one normalised image [1, channel, height, width].
        patch: its row and column on the grid of patches.
        solver_config: how to integrate both; the model's own unless given.
        kind: `token` adds strength * |x_j| in a random direction to the patch's token at t = 0; `picture` replaces the
            patch by a mixture of itself and the image's mean colour, of which `strength`, at most 1, is the colour.
        strength: the size of the perturbation.
        seed: of the random direction.
    """
    solver_config, layout = solver_config or model.solver_config, model.layout(*pixels.shape[-2:])
    _check(layout, pixels, patch, kind, strength)
    with frozen(model):
        x0 = model.embed(pixels)
        if kind == "token":
            equation, start = model.field.dynamics(x0), _perturb_token(x0, layout, patch, strength, seed)
        else:
            start = model.embed(_cover_patch(pixels, layout, patch, strength))
            equation = model.field.dynamics(start)
        first = model.follow(x0, solver_config, save="all")
        other = integrate(equation, start, solver_config, save="all")
    for solution in (first, other):
        solution.require("a path of the two")
    pairs = list(zip(first.states, other.states, strict=True))
    distance = torch.stack([(there - here).double().norm() for here, there in pairs])
    size = torch.stack([here.double().norm() for here, _ in pairs])
    return Divergence(kind, tuple(map(float, first.times)), first.states, other.states, distance.cpu(), size.cpu())


def _check(layout: TokenLayout, pixels: Pixels, patch: tuple[int, int], kind: str, strength: float) -> None:
    rows, columns = layout.grid
    problems = []
    if len(pixels) != 1:
        problems.append(f"{len(pixels)} images; expected one")
    if not (0 <= patch[0] < rows and 0 <= patch[1] < columns):
        problems.append(f"patch={patch}; expected a row and a column of the {rows} x {columns} patches")
    if kind not in KINDS:
        problems.append(f"kind={kind!r}; expected one of {', '.join(KINDS)}")
    problems += real(above=0, maximum=1 if kind == "picture" else 100).problem("strength", strength)
    if problems:
        raise ConfigError("perturb_patch", problems)


def _perturb_token(x0: Tokens, layout: TokenLayout, patch: tuple[int, int], strength: float, seed: int) -> Tokens:
    """x0 with strength * |x_j| u added to the token j of the patch, u a random unit vector."""
    token = layout.patches.start + patch[0] * layout.grid[1] + patch[1]
    direction = random_normal((x0.shape[-1],), seed).to(x0)
    perturbed = x0.clone()
    perturbed[:, token] += strength * x0[:, token].norm() * direction / direction.norm()
    return perturbed


def _cover_patch(pixels: Pixels, layout: TokenLayout, patch: tuple[int, int], strength: float) -> Pixels:
    """The image with its mean colour over one patch."""
    (height, width), (rows, columns) = pixels.shape[-2:], layout.grid
    down = slice(patch[0] * height // rows, (patch[0] + 1) * height // rows)
    across = slice(patch[1] * width // columns, (patch[1] + 1) * width // columns)
    covered = pixels.clone()
    colour = pixels.mean(dim=(-2, -1), keepdim=True)
    covered[..., down, across] = torch.lerp(pixels[..., down, across], colour, strength)
    return covered
