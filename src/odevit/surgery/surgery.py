"""blocks -> dx/dt = f(x): a pretrained ViT becomes a student with an equation in place of its blocks."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from odevit.core.field import VectorField
from odevit.core.layers import Projection, spectral_
from odevit.deprecated import renamed_arguments
from odevit.errors import ConfigError, OdeVitWarning
from odevit.hf.processor import find_processor, statistics_of
from odevit.surgery.block_adapter import block_spec
from odevit.surgery.configuration_student import TEACHERS_FIELDS, OdeStudentConfig
from odevit.surgery.encoder import BlockBridge, DepthBridge
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.plain_vit import describe
from odevit.surgery.vit_spec import VitSpec, fit_to_processor, inspect_vit
from odevit.surgery.weight_init import copy_error, copy_problems, init_from_blocks
from odevit.time_varying.knots import KnottedField

COPY_TOLERANCE = 0.01
"""The relative difference between a block and its copy in a field from which on there is a warning.

Thirty times as much for a teacher in half precision, whose states are rounded to a few parts in a thousand.
"""


def get_ode_model(
    vit: nn.Module, config: OdeStudentConfig | None = None, *, vit_spec: VitSpec | None = None, **overrides: Any
) -> OdeStudent:
    """A student of `vit`: a copy of it in which one vector field and its integration replace the list of blocks.

    The given model is not changed, and nothing is shared with it. In the copy everything but the equation is frozen.

    Args:
        vit: a Vision Transformer of transformers (ViT, DINO, DeiT, DINOv2, DINOv3, CLIP's and SigLIP's vision
            models), of timm, or our own with depth="stacked". Others work if their blocks can be found.
        config: the equation; by default one Lie-Trotter step of length 1 for each of its blocks.
        vit_spec: of `vit`, if it was inspected already.
        overrides: values that replace parts of `config`.
    """
    if isinstance(vit, OdeStudent) or any(isinstance(part, BlockBridge | DepthBridge) for part in vit.modules()):
        raise ValueError(
            f"this {type(vit).__name__} was operated on already: its depth is an equation. "
            "Call .unload() on the student and pass the model that it returns"
        )
    if "anatomy" in overrides:
        vit_spec = renamed_arguments({"anatomy": overrides.pop("anatomy")})["vit_spec"]
    if taken := [name for name in overrides if name in TEACHERS_FIELDS and name not in ("image_mean", "image_std")]:
        raise ConfigError("get_ode_model", [f"{name} is always the teacher's; leave it out" for name in taken])
    config = config or OdeStudentConfig()
    config = config.changed(**overrides) if overrides else config  # each new one is validated again
    model = copy.deepcopy(vit).eval().requires_grad_(False)
    processor = find_processor(str(getattr(vit, "name_or_path", "")), model)
    vit_spec = fit_to_processor(inspect_vit(model), model, processor) if vit_spec is None else vit_spec
    blocks = vit_spec.locator.blocks(model)
    base, base_config = describe(model)
    statistics = None if processor is None else statistics_of(processor)
    config = config.resolve_for(model, vit_spec, base, base_config, statistics)
    config.init = resolve_init(config, model, vit_spec)
    student = OdeStudent(config, model)
    if config.init == "average":
        init_from_blocks(student.field, blocks, config)
    else:
        initialise_spectral(student.field)
    # Only the equation is trained, so it is in float32, whatever the precision of the frozen parts.
    student.encoder.to(next(blocks[0].parameters()).device)
    student.set_original(vit, processor)
    return student.train(vit.training)


def initialise_spectral(field: VectorField | KnottedField) -> None:
    """Every projection with spectral norm 1, every bias 0, all knots as the first."""
    for module in field.modules():
        if isinstance(module, Projection):
            spectral_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if isinstance(field, KnottedField):
        field.tie_knots()


def resolve_init(config: OdeStudentConfig, model: nn.Module, vit_spec: VitSpec) -> str:
    """How the field starts: `average`, if the teacher's blocks can be copied, or `spectral`.

    A warning lists what a copy loses.

    Raises:
        ConfigError: for init="average" and blocks that differ from the field, with all differences.
    """
    has_knots = config.knots > 1 or config.vector_knots is not None
    if config.init == "spectral" or (config.init == "auto" and not has_knots):
        return "spectral"
    blocks = vit_spec.locator.blocks(model)
    problems = copy_problems(blocks, config, vit_spec)
    if problems and config.init == "average":
        raise ConfigError("init='average'", [*problems, "or pass init='spectral', which needs none of them"])
    if problems:
        warnings.warn(f"the field starts without its teacher's weights: {'; '.join(problems)}", OdeVitWarning, 3)
        return "spectral"
    error = copy_error(model, vit_spec, config)
    reasons = list(block_spec(blocks[0]).lacking)
    if vit_spec.rotary and not config.rope_theta:
        reasons.append("its positions stand in attention, those of the field do not")
    exact = next(blocks[0].parameters()).dtype in (torch.float32, torch.float64)
    if reasons or not error < COPY_TOLERANCE * (1 if exact else 30):
        why = "; ".join(reasons) or "the blocks compute something that no field does"
        text = f"a block and its copy differ by {error:.0%} of what the block does: {why}"
        warnings.warn(f"the field starts near its teacher, but {text}", OdeVitWarning, 3)
    return "average"
