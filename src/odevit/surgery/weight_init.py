"""W_k = sum_l b_kl W_l: the first weights of a field are blends of its teacher's blocks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.surgery.block_adapter import block_spec, weights_of
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.vit_spec import VitSpec, zero_image
from odevit.time_varying.builder import make_vector_field
from odevit.time_varying.hyper import HyperField
from odevit.time_varying.knot_schedule import KnotSchedule
from odevit.time_varying.knots import KnottedField
from odevit.time_varying.low_rank import LowRankChange

SETTINGS = {"gate_proj": "gated=True", "_norm.": "qk_norm=True", "scale": "residual_scale=1.0", "bias": "bias=True"}
"""Part of a weight's name -> the setting with which a field has it."""


def copy_problems(blocks: Sequence[nn.Module], config: OdeStudentConfig, vit_spec: VitSpec) -> list[str]:
    """Why a field cannot start as a blend of the blocks, as sentences."""
    spec, width = block_spec(blocks[0]), vit_spec.width
    expected = {"hidden_size": width, "num_attention_heads": vit_spec.heads, "attention": spec.attention}
    expected |= {} if spec.norm is None else {"norm": spec.norm}
    problems = [
        f"{name}={getattr(config, name)!r}, the teacher's is {value!r}; leave it out"
        for name, value in expected.items()
        if getattr(config, name) != value
    ]
    problems += spec.strange
    if problems:
        return problems
    with torch.device("meta"):
        known = dict(_autonomous(config, vit_spec, None).named_parameters())
    given = weights_of(blocks[0], config.residual_scale is not None)
    problems = [
        f"{name} has the shape {tuple(value.shape)} in the teacher and {tuple(known[name].shape)} in the field"
        + (f"; pass mlp_ratio={value.shape[0] / width:g}" if name.endswith("up_proj.weight") else "")
        for name, value in given.items()
        if name in known and value.shape != known[name].shape
    ]
    if unknown := [name for name in given if name not in known]:
        hints = dict.fromkeys(next(SETTINGS[part] for part in SETTINGS if part in name) for name in unknown)
        problems.append(f"the field has no {', '.join(unknown)}, the teacher has; pass {', '.join(hints)}")
    missing = [name for name in known if name not in given and not name.endswith(".bias") and ".time" not in name]
    if missing:
        problems.append(f"the teacher's blocks have no {', '.join(missing)}")
    return problems


def blend_weights(schedule: KnotSchedule, layers: int) -> Tensor:
    """b_kl, [knot, layer]: the weight of each block in a knot's first values; every row sums to 1.

    Linear blend: max(0, 1 - |l - c| / gap), the hat function around the knot's place c among the layers 0..L-1.
    Constant blend, and a single knot: equal weights for its blocks. A knot without a block takes the nearest one.
    """
    linear = schedule.blend == "linear"
    times = [n / max(1, layers - 1) if linear else (n + 0.5) / layers for n in range(layers)]
    hats = _hats(schedule, times).T
    for row, time, end in zip(hats, schedule.times, (*schedule.times[1:], 1.0), strict=True):
        if row.sum() == 0:
            nearest = round(time * (layers - 1)) if linear else int((time + end) / 2 * layers)
            row[min(nearest, layers - 1)] = 1.0
    return hats / hats.sum(dim=1, keepdim=True)


def knot_times(distances: Sequence[float], knots: int, blend: str = "linear") -> tuple[float, ...]:
    """Fractions of the horizon that divide the path d_1 + ... + d_L into equal lengths, for `knot_times`.

    Args:
        distances: how far each layer moves the tokens, as `layer_distances` measures it; each takes an equal time.
        knots, blend: as in the configuration.
    """
    moving = [layer for layer, distance in enumerate(distances) if distance > 0]
    if not moving:
        raise ValueError(f"distances={list(distances)}; expected a layer that moves the tokens")
    path = [sum(distances[:n]) / sum(distances) for n in range(len(distances) + 1)]
    times = []
    for fraction in KnotSchedule.of(knots, 1.0, blend).times:
        layer = min(bisect_right(path, fraction) - 1, moving[-1])
        within = (fraction - path[layer]) / (path[layer + 1] - path[layer])
        times.append(round((layer + within) / len(distances), 6))
    return tuple(times)


@torch.no_grad()
def init_from_blocks(field: VectorField | KnottedField, blocks: Sequence[nn.Module], config: OdeStudentConfig) -> None:
    """W_k = sum_l b_kl W_l for every knot; a field without knots is the mean of the blocks. Other biases are 0.

    Low-rank changes start as the best approximation of what the mean misses, vectors as blends at their own knots.
    """
    weights = [weights_of(block, config.residual_scale is not None) for block in blocks]
    if isinstance(field, HyperField):
        field = cast(VectorField, field.knots[0])  # what its network adds starts at 0
    if isinstance(field, VectorField):
        return _write(field, _mixed(weights, torch.full((len(blocks),), 1.0 / len(blocks))))
    rows = blend_weights(field.knot_schedule, len(blocks))
    for knot, row in zip(field.knots, rows, strict=True):
        _write(cast(VectorField, knot), _mixed(weights, row))
    if field.changes:
        missed = (
            blend_weights(field.change_schedule, len(blocks))
            - _hats(field.knot_schedule, field.change_schedule.times) @ rows
        )
        for change, row in zip(field.changes, missed, strict=True):
            cast(LowRankChange, change).approximate(_mixed(weights, row))


@torch.no_grad()
def truncation_report(field: KnottedField, blocks: Sequence[nn.Module], config: OdeStudentConfig) -> str:
    """|W(t_k) - W_l| / |W_l| over all weights, for every knot and the blocks it replaces, as a small table."""
    schedule = field.knot_schedule if len(field.knots) > 1 else field.change_schedule
    lines = ["knot  share of T  blocks  distance of its weights from theirs"]
    for number, (time, row) in enumerate(
        zip(schedule.times, blend_weights(schedule, len(blocks)), strict=True), start=1
    ):
        knot, replaced = field.at(time * schedule.horizon), row.nonzero().flatten().tolist()
        distances = [_distance(knot, weights_of(blocks[n], config.residual_scale is not None)) for n in replaced]
        numbers = "-".join(str(n + 1) for n in dict.fromkeys((replaced[0], replaced[-1])))
        lines.append(f"{number:4}  {time:10.3f}  {numbers:>6}  {' '.join(f'{value:.3f}' for value in distances)}")
    return "\n".join(lines)


@torch.no_grad()
def copy_error(model: nn.Module, vit_spec: VitSpec, config: OdeStudentConfig) -> float:
    """|b(h) - b'(h)| / |b(h) - h| for the first block b, its copy b' in a field, and h of an image of noise.

    The names of weights do not show everything that a copy lacks; its output does.
    """
    pixels = zero_image(model, vit_spec.channels, vit_spec.size)
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    with vit_spec.locator.record_states(model) as trace:
        model(noise.to(pixels))
    before, after = (state.float() for state in trace.states[:2])
    block = vit_spec.locator.blocks(model)[0]
    copy = _autonomous(config, vit_spec, model).to(before.device).eval()
    _write(copy, weights_of(block, config.residual_scale is not None))
    moved = solve(copy, before, solver="lie_trotter", steps=1, t1=1.0).state
    return float((moved - after).norm() / (after - before).norm())


def _autonomous(config: OdeStudentConfig, vit_spec: VitSpec, model: nn.Module | None) -> VectorField:
    """A field of one set of weights with the other settings of `config`. Without a model it has no positions."""
    config = config.changed(leak=0.0, fade=0.0, **({} if model else {"rope_theta": 0.0}))
    return make_vector_field(config, vit_spec.layout(model) if model and config.rope_theta else None)


def _hats(schedule: KnotSchedule, times: Sequence[float]) -> Tensor:
    """[time, knot]: the weight of every knot at these fractions of the horizon."""
    hats = torch.zeros(len(times), len(schedule.times))
    for row, time in zip(hats, times, strict=True):
        k, w = schedule(time * schedule.horizon)
        w = round(w, 9)  # the time of a layer at a knot may be rounded
        row[k] = 1.0 - w
        if w > 0.0:
            row[k + 1] = w
    return hats


def _mixed(weights: Sequence[dict[str, Tensor]], row: Tensor) -> dict[str, Tensor]:
    """sum_l b_l W_l over b_l != 0, so that a single block is copied to the last bit."""
    terms = [(b, block) for b, block in zip(row.tolist(), weights, strict=True) if b != 0.0]
    return {
        name: torch.stack([b * block[name] for b, block in terms]).sum(0) if terms else 0.0 * weight
        for name, weight in weights[0].items()
    }


def _write(field: VectorField, weights: dict[str, Tensor]) -> None:
    for name, parameter in field.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])
        elif name.endswith(".bias") and ".body." in name:
            parameter.zero_()


def _distance(field: VectorField, weights: dict[str, Tensor]) -> float:
    difference = total = 0.0
    for name, weight in weights.items():
        owner, _, leaf = name.rpartition(".")
        own = getattr(field.get_submodule(owner), leaf)  # a parameter, or a buffer of a field between knots
        difference += float((own - weight.to(own.device)).square().sum())
        total += float(weight.square().sum())
    return math.sqrt(difference / total)
