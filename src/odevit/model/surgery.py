"""blocks -> dx/dt = f(x): a pretrained ViT becomes a student whose depth is an equation."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from odevit.distill.anatomy import Anatomy, examine
from odevit.distill.average import initialise_average, initialise_spectral
from odevit.distill.configuration import OdeEncoderConfig
from odevit.distill.encoder import OdeEncoder
from odevit.distill.pixels import read_processor
from odevit.distill.student import OdeStudent


def get_ode_model(vit: nn.Module, config: OdeEncoderConfig | None = None, **overrides: Any) -> OdeStudent:
    """A student of `vit`: a copy of it whose list of blocks is one vector field and its integration.

    The given model stays as it was, and nothing is shared with it. In the copy everything but the equation is frozen.

    Args:
        vit: a Vision Transformer of transformers (ViT, DINO, DeiT, DINOv2, DINOv3, CLIP's and SigLIP's vision
            models), of timm, or our own with depth="stacked". Others work when their blocks can be found.
        config: the equation; the defaults are one Lie-Trotter step of length 1 for each of twelve blocks.
        overrides: values that replace parts of `config`.
    """
    return operate(vit, (config or OdeEncoderConfig()).changed(**overrides), keep=True, initialise=True)


def operate(vit: nn.Module, config: OdeEncoderConfig, *, keep: bool, initialise: bool) -> OdeStudent:
    """The surgery itself, on a copy.

    Args:
        keep: whether the student remembers `vit`; a model that nobody else has need not be copied either.
        initialise: whether the field's weights are made; False when they are about to be loaded.
    """
    if isinstance(vit, OdeStudent) or any(isinstance(module, OdeEncoder) for module in vit.modules()):
        raise ValueError(
            f"this {type(vit).__name__} was operated on already: its depth is an equation. "
            "Call .unload() on the student and pass what it gives"
        )
    total = sum(parameter.numel() for parameter in vit.parameters())
    model = copy.deepcopy(vit) if keep else vit
    model.eval()
    model.requires_grad_(False)
    anatomy = examine(model)
    config = config.resolved(
        width=anatomy.width,
        heads=anatomy.heads,
        blocks=anatomy.blocks,
        eps=anatomy.eps,
        rotary=anatomy.rotary,
    )
    encoder = _make_encoder(model, anatomy, config, initialise)
    anatomy.place.install(model, anatomy.place.house(encoder))
    student = OdeStudent(
        model,
        config,
        anatomy,
        original=vit if keep else None,
        original_parameters=total,
        processor=read_processor(str(getattr(vit, "name_or_path", ""))),
    )
    return student.train(vit.training)


def _make_encoder(model: nn.Module, anatomy: Anatomy, config: OdeEncoderConfig, initialise: bool) -> OdeEncoder:
    layout = anatomy.layout(model) if config.positions else None
    blocks = anatomy.place.blocks(model)
    encoder = OdeEncoder(config, anatomy.width, layout, getattr(anatomy.place, "as_tuple", False))
    if initialise and config.init == "average":
        initialise_average(encoder.field, blocks, config, anatomy.width, anatomy.heads)
    elif initialise:
        initialise_spectral(encoder.field)
    # The precision stays float32 whatever the frozen parts have: only the equation is trained.
    return encoder.to(next(blocks[0].parameters()).device)
