"""W_k = sum_l b_kl W_l: a field that starts as blends of its teacher's blocks."""

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
"""What to pass so that a field has a part whose name contains this."""


def copy_problems(blocks: Sequence[nn.Module], config: OdeStudentConfig, vit_spec: VitSpec) -> list[str]:
    """What keeps a field from starting as a blend of the blocks, as sentences."""
    theirs, width = block_spec(blocks[0]), vit_spec.width
    expected = {"hidden_size": width, "num_attention_heads": vit_spec.heads, "attention": theirs.attention}
    expected |= {} if theirs.norm is None else {"norm": theirs.norm}
    problems = [
        f"{name}={getattr(config, name)!r}, the teacher's is {value!r}; leave it out"
        for name, value in expected.items()
        if getattr(config, name) != value
    ]
    problems += theirs.strange
    if problems:
        return problems
    with torch.device("meta"):
        own = dict(_autonomous(config, vit_spec, None).named_parameters())
    given = weights_of(blocks[0], config.residual_scale is not None)
    problems = [
        f"{name} has the shape {tuple(value.shape)} in the teacher and {tuple(own[name].shape)} in the field"
        + (f"; pass mlp_ratio={value.shape[0] / width:g}" if name.endswith("up_proj.weight") else "")
        for name, value in given.items()
        if name in own and value.shape != own[name].shape
    ]
    homeless = [name for name in given if name not in own]
    if homeless:
        hints = dict.fromkeys(next(SETTINGS[part] for part in SETTINGS if part in name) for name in homeless)
        problems.append(f"the field has no {', '.join(homeless)}, the teacher has; pass {', '.join(hints)}")
    missing = [name for name in own if name not in given and not name.endswith(".bias") and ".time" not in name]
    if missing:
        problems.append(f"the teacher's blocks have no {', '.join(missing)}")
    return problems


def blend_weights(table: KnotSchedule, layers: int) -> Tensor:
    """b_kl, [knot, layer]: how much of each block a knot starts with; every row sums to 1.

    Straight between knots: max(0, 1 - |l - c| / gap), the hat around the knot's own place c among the layers 0..L-1.
    Constant pieces, and a single knot: equal shares of the blocks in it. A knot without a block takes the nearest one.
    """
    linear = table.blend == "linear"
    places = [n / max(1, layers - 1) if linear else (n + 0.5) / layers for n in range(layers)]
    hats = _hats(table, places).T
    for row, time, end in zip(hats, table.times, (*table.times[1:], 1.0), strict=True):
        if row.sum() == 0:
            nearest = round(time * (layers - 1)) if linear else int((time + end) / 2 * layers)
            row[min(nearest, layers - 1)] = 1.0
    return hats / hats.sum(dim=1, keepdim=True)


def knot_times(distances: Sequence[float], knots: int, blend: str = "linear") -> tuple[float, ...]:
    """Shares of the horizon that part the way d_1 + ... + d_L into equal lengths: knots where a teacher moves most.

    Args:
        distances: how far each layer moves the tokens, as `layer_distances` measures it; each takes an equal time.
        knots, blend: as in the configuration, whose `knot_times` this is for.
    """
    moving = [layer for layer, distance in enumerate(distances) if distance > 0]
    if not moving:
        raise ValueError(f"distances={list(distances)}; expected a layer that moves the tokens")
    solver_config = [sum(distances[:n]) / sum(distances) for n in range(len(distances) + 1)]
    times = []
    for mark in KnotSchedule.of(knots, 1.0, blend).times:
        layer = min(bisect_right(solver_config, mark) - 1, moving[-1])
        times.append(
            round(
                (layer + (mark - solver_config[layer]) / (solver_config[layer + 1] - solver_config[layer]))
                / len(distances),
                6,
            )
        )
    return tuple(times)


@torch.no_grad()
def init_from_blocks(field: VectorField | KnottedField, blocks: Sequence[nn.Module], config: OdeStudentConfig) -> None:
    """W_k = sum_l b_kl W_l for every knot; a field without knots is the mean of the blocks. Biases they lack are 0.

    Changes of a low rank start as the nearest ones to what the mean misses, vectors as blends at their own knots.
    """
    weights = [weights_of(block, config.residual_scale is not None) for block in blocks]
    if isinstance(field, HyperField):
        field = cast(VectorField, field.knots[0])  # what a network adds begins as nothing
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
    """|W(t_k) - W_l| / |W_l| over all weights, for every knot and the blocks it stands for, as a small table."""
    table = field.knot_schedule if len(field.knots) > 1 else field.change_schedule
    lines = ["knot  share of T  blocks  distance of its weights from theirs"]
    for number, (time, row) in enumerate(zip(table.times, blend_weights(table, len(blocks)), strict=True), start=1):
        own, stands_for = field.at(time * table.horizon), row.nonzero().flatten().tolist()
        away = [_distance(own, weights_of(blocks[n], config.residual_scale is not None)) for n in stands_for]
        named = "-".join(str(n + 1) for n in dict.fromkeys((stands_for[0], stands_for[-1])))
        lines.append(f"{number:4}  {time:10.3f}  {named:>6}  {' '.join(f'{value:.3f}' for value in away)}")
    return "\n".join(lines)


@torch.no_grad()
def copy_error(model: nn.Module, vit_spec: VitSpec, config: OdeStudentConfig) -> float:
    """|b(h) - b'(h)| / |b(h) - h| for the first block b, its copy b' in a field, and h of an image of noise.

    What a copy leaves out does not always show in the names of weights; it shows in what it computes.
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
    """A field of one set of weights that is otherwise as configured. Without a model it has no positions."""
    plain = config.changed(leak=0.0, fade=0.0, **({} if model else {"rope_theta": 0.0}))
    return make_vector_field(plain, vit_spec.layout(model) if model and plain.rope_theta else None)


def _hats(table: KnotSchedule, times: Sequence[float]) -> Tensor:
    """[time, knot]: what every knot counts for at these shares of the horizon."""
    hats = torch.zeros(len(times), len(table.times))
    for row, time in zip(hats, times, strict=True):
        k, w = table(time * table.horizon)
        w = round(w, 9)  # a layer that stands on a knot does so however its time was rounded
        row[k] = 1.0 - w
        if w > 0.0:
            row[k + 1] = w
    return hats


def _mixed(weights: Sequence[dict[str, Tensor]], row: Tensor) -> dict[str, Tensor]:
    """sum_l b_l W_l, without those that count for nothing: one block alone stays as it is to the last bit."""
    counted = [(share, block) for share, block in zip(row.tolist(), weights, strict=True) if share != 0.0]
    return {
        name: torch.stack([share * block[name] for share, block in counted]).sum(0) if counted else 0.0 * weight
        for name, weight in weights[0].items()
    }


def _write(field: VectorField, weights: dict[str, Tensor]) -> None:
    for name, parameter in field.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])
        elif name.endswith(".bias") and ".body." in name:
            parameter.zero_()


def _distance(field: VectorField, weights: dict[str, Tensor]) -> float:
    apart = whole = 0.0
    for name, weight in weights.items():
        owner, _, leaf = name.rpartition(".")
        own = getattr(field.get_submodule(owner), leaf)
        apart += float((own - weight.to(own.device)).square().sum())
        whole += float(weight.square().sum())
    return math.sqrt(apart / whole)
