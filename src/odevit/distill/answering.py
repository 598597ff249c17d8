"""images -> logits, and what they cost: teachers and students as models that can be scored."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from odevit.depth import Integration
from odevit.distill.step import DistillationOutput
from odevit.distill.student import OdeStudent
from odevit.distill.teacher import Teacher
from odevit.shapes import Pixels
from odevit.solver import Solver, Stats, Stop


class AnsweringTeacher(nn.Module):
    """A teacher's logits, one evaluation for each of its layers."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    @property
    def device(self) -> torch.device:
        return next(self.teacher.parameters()).device

    def forward(self, pixel_values: Pixels, **integration: Any) -> DistillationOutput:
        layers = self.teacher.num_layers
        return DistillationOutput(logits=self.teacher.logits(pixel_values), stats=Stats(nfe=layers, steps=layers))


class AnsweringStudent(nn.Module):
    """A student's logits, integrated in any way, with the trajectory that led to them."""

    def __init__(self, student: OdeStudent) -> None:
        super().__init__()
        self.student = student

    @property
    def device(self) -> torch.device:
        return next(self.student.parameters()).device

    def forward(
        self,
        pixel_values: Pixels,
        *,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        stop: str | Stop | None = None,
        depth: str | None = None,
    ) -> DistillationOutput:
        read = self.student.reader(pixel_values)
        how = Integration(solver, steps, horizon, stop=stop, read=None if stop is None else read)
        solution = self.student.encoder.integrate(self.student.embed(pixel_values), how, depth)
        return DistillationOutput(logits=read(solution.state), stats=solution.stats, trajectory=solution)
