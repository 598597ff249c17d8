"""image -> x(0) -> x(t) -> logits: what analysis knows of a model, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from odevit.depth import OdeDepth
from odevit.distill.anatomy import answer_of
from odevit.distill.student import OdeStudent
from odevit.field.dynamics import Field
from odevit.model import OdeViTForImageClassification
from odevit.model.layout import TokenLayout
from odevit.shapes import Logits, Pixels, Tokens
from odevit.solver import Solution, solve


@dataclass(frozen=True)
class Subject:
    """A model of continuous depth taken apart: embedding, field, head.

    States are those of the field itself; a student that is narrower than its teacher integrates in its own width.

    Args:
        model: the whole, for whoever needs it.
        field: f of dx/dt = f(x).
        embed: images to x(0).
        logits: a state, anywhere on a trajectory, to what the head says of it.
        outside: a state to the width in which a teacher's states live; the identity without one.
        layout: where CLS, patches and registers stand.
        solver, steps, horizon: how the model integrates by itself.
        labels: the names of the classes.
    """

    model: nn.Module
    field: Field
    embed: Callable[[Pixels], Tokens]
    logits: Callable[[Tokens], Logits]
    outside: Callable[[Tokens], Tokens]
    layout: TokenLayout
    solver: str
    steps: int
    horizon: float
    labels: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Subject:
        """Take a classifier or a distilled student apart."""
        if isinstance(model, OdeStudent):
            return _student(model)
        if isinstance(model, OdeViTForImageClassification):
            return _classifier(model)
        raise ValueError(
            f"a {type(model).__name__} was given; expected an OdeViTForImageClassification or an OdeStudent"
        )

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return next(self.model.parameters()).device

    def solve(self, x0: Tokens, *, save: Any = None, **how: Any) -> Solution:
        """The trajectory from x(0), integrated as the model does unless told otherwise (solver, steps, horizon)."""
        return solve(
            self.field,
            x0,
            solver=how.get("solver") or self.solver,
            steps=how.get("steps") or self.steps,
            t1=how.get("horizon") or self.horizon,
            save=save,
        )


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Within this context the model is in evaluation mode without gradients; after it everything is as it was.

    Modes of every module, what requires gradients, and the global random states come back, also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            for module, _ in modes:
                module.training = False
            for parameter, _ in wanted:
                parameter.requires_grad_(False)
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, flag in wanted:
                parameter.requires_grad_(flag)


def _classifier(model: OdeViTForImageClassification) -> Subject:
    depth = model.odevit.depth
    if not isinstance(depth, OdeDepth):
        raise ValueError(
            f"a depth of the kind {model.config.depth!r} has no trajectory to analyse: its layers obey no common "
            "equation; expected depth='ode'. odevit distill turns such a model into one"
        )
    return Subject(
        model=model,
        field=depth.field,
        embed=model.odevit.embedding,
        logits=model.readout,
        outside=lambda state: state,
        layout=model.layout(),
        solver=depth.solver,
        steps=depth.steps,
        horizon=depth.horizon,
        labels={int(k): str(v) for k, v in (model.config.id2label or {}).items()},
    )


def _student(model: OdeStudent) -> Subject:
    encoder = model.encoder

    def logits(state: Tokens) -> Logits:
        found = answer_of(model.model, model.readout(encoder.leave(state))).logits
        if found is None:
            raise ValueError("the student has no classification head; distil a model ...ForImageClassification")
        return found

    names = getattr(getattr(model.model, "config", None), "id2label", None) or {}
    return Subject(
        model=model,
        field=encoder.field,
        embed=lambda pixels: encoder.enter(model.embed(pixels)),
        logits=logits,
        outside=encoder.leave,
        layout=model.inner_layout(),
        solver=encoder.depth.solver,
        steps=encoder.depth.steps,
        horizon=encoder.depth.horizon,
        labels={int(k): str(v) for k, v in names.items()},
    )
