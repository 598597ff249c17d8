"""blocks -> dx/dt = f(x): a pretrained ViT becomes a student whose depth is an equation."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from odevit.model.anatomy import Anatomy, examine
from odevit.model.configuration_student import OdeStudentConfig
from odevit.model.encoder import BlockBridge, DepthBridge
from odevit.model.inherit import initialise_average, initialise_spectral
from odevit.model.modeling_student import OdeStudent
from odevit.model.origin import describe
from odevit.model.processor import read_processor, statistics_of


def get_ode_model(
    vit: nn.Module, config: OdeStudentConfig | None = None, *, anatomy: Anatomy | None = None, **overrides: Any
) -> OdeStudent:
    """A student of `vit`: a copy of it whose list of blocks is one vector field and its integration.

    The given model stays as it was, and nothing is shared with it. In the copy everything but the equation is frozen.

    Args:
        vit: a Vision Transformer of transformers (ViT, DINO, DeiT, DINOv2, DINOv3, CLIP's and SigLIP's vision
            models), of timm, or our own with depth="stacked". Others work when their blocks can be found.
        config: the equation; the defaults are one Lie-Trotter step of length 1 for each of twelve blocks.
        anatomy: of `vit`, when it was examined already.
        overrides: values that replace parts of `config`.
    """
    if isinstance(vit, OdeStudent) or any(isinstance(part, BlockBridge | DepthBridge) for part in vit.modules()):
        raise ValueError(
            f"this {type(vit).__name__} was operated on already: its depth is an equation. "
            "Call .unload() on the student and pass what it gives"
        )
    config = (config or OdeStudentConfig()).changed(**overrides)
    model = copy.deepcopy(vit).eval().requires_grad_(False)
    anatomy = examine(model) if anatomy is None else anatomy
    blocks = anatomy.where.blocks(model)
    base, base_config = describe(model)
    processor = read_processor(str(getattr(vit, "name_or_path", "")))
    config = config.completed(model, anatomy, base, base_config, statistics_of(processor, model))

    student = OdeStudent(config, model)
    if config.init == "average":
        initialise_average(student.field, blocks, config, anatomy.width, anatomy.heads)
    else:
        initialise_spectral(student.field)
    # The precision stays float32 whatever the frozen parts have: only the equation is trained.
    student.encoder.to(next(blocks[0].parameters()).device)
    student.remember(vit, processor)
    return student.train(vit.training)
