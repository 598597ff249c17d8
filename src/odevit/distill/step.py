"""x(tau_l T) = h_l: one step of distillation, from images to a loss."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import ModelOutput

from odevit.depth import Integration
from odevit.distill.alignment import Alignment
from odevit.distill.anatomy import answer_of
from odevit.distill.cache import TeacherCache
from odevit.distill.objective import DistillObjective
from odevit.distill.student import OdeStudent
from odevit.distill.teacher import Teacher, TeacherOutput
from odevit.objectives import JaSMin, Transport, attention_kl, attention_l1, logit_kl, path_matching
from odevit.shapes import Logits, Pixels, Tokens
from odevit.solver import Penalty, Save, Solution, Solver, Stats, solve


@dataclass
class DistillationOutput(ModelOutput):
    """The loss with its parts while training; logits and what they cost otherwise."""

    loss: Tensor | None = None
    logits: Logits | None = None
    stats: Stats | None = None
    trajectory: Solution | None = None
    parts: dict[str, Tensor] | None = None


class Distillation(nn.Module):
    """L(student; teacher), as a module that the Trainer can train, wrap and replay.

    In training it gives a loss; in evaluation it is the student. The teacher is no part of it: it is not trained, not
    saved and not moved with it.

    Args:
        student: the operated copy of the teacher.
        teacher: the frozen original.
        alignment: which step meets which layer.
        objective: what is asked for.
        features: what the teacher says of every training image, kept on disk; images must then not be augmented.
    """

    # The loss is a mean over the batch as it came; the Trainer must not divide it again.
    accepts_loss_kwargs = False

    def __init__(
        self,
        student: OdeStudent,
        teacher: Teacher,
        alignment: Alignment,
        objective: DistillObjective,
        features: TeacherCache | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.alignment = alignment
        self.objective = objective
        self.features = features
        # In a tuple, so that it is not registered as a part of this module.
        self._teacher = (teacher,)
        # How much of the training is over; set from outside before a step, never in forward.
        self.progress = 0.0

    @property
    def teacher(self) -> Teacher:
        return self._teacher[0]

    @property
    def device(self) -> torch.device:
        return next(self.student.parameters()).device

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the student."""
        self.student.save_pretrained(folder)

    def forward(
        self,
        pixel_values: Pixels,
        labels: Tensor | None = None,
        *,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        index: Tensor | None = None,
    ) -> DistillationOutput:
        """The loss of a batch in training mode; otherwise the student's logits.

        Args:
            pixel_values: normalised as the teacher wants them.
            labels: class numbers or probabilities; used only when the objective has a cross entropy.
            solver: the student's own unless given.
            steps: N, over the student's own horizon.
            horizon: how far to go; beyond the own horizon the target stays the teacher's last state.
            index: which samples these are; with `features` the teacher is not asked again.
        """
        if self.training:
            return self._loss(pixel_values, labels, solver, steps, horizon, self._told(pixel_values, index))
        x0 = self.student.embed(pixel_values)
        solution = self.student.encoder.integrate(x0, Integration(solver, steps, horizon))
        return DistillationOutput(logits=self._logits(solution.state), stats=solution.stats)

    def _loss(
        self,
        pixels: Pixels,
        labels: Tensor | None,
        solver: str | Solver | None,
        steps: int | None,
        horizon: float | None,
        told: TeacherOutput,
    ) -> DistillationOutput:
        goal, depth = self.objective, self.student.encoder.depth
        own = depth.steps if steps is None else steps
        held = 1.0 if horizon is None else horizon / depth.horizon
        # The last layer is met at the end, however few steps lead there.
        meetings = (own,) if goal.path == "last" else self.alignment.indices(own)
        # Past its own horizon a student has arrived: the last target stays, for a stretch of the same step size.
        total = max(own, round(own * held))
        kept = (*meetings, total) if total > own else meetings
        targets = list(told.states[-len(meetings) :])
        targets += [told.states[-1]] * (len(kept) - len(meetings))
        solution = self.student.encoder.integrate(
            told.states[0],
            Integration(
                solver,
                total,
                depth.horizon * total / own,
                Save(kept, attentions=bool(goal.attention_l1 or goal.attention_kl)),
                self._penalties(),
            ),
        )
        parts: dict[str, Tensor] = {}
        weights = {"cls": goal.cls, "patches": goal.patches, "registers": goal.registers}
        if any(weights.values()):
            layout = self.student.layout(pixels)
            states = list(solution.states)
            if self.progress < goal.forced:
                states[: len(meetings)] = self._forced(told.states, meetings, solver, own)
            matched = path_matching(states, targets, layout, **weights)
            parts["path"] = matched["loss"]
        parts |= self._attention_parts(solution, told, meetings)
        if goal.logits > 0 or self._uses_labels():
            logits = self._logits(solution.state)
            if goal.logits > 0:
                if told.logits is None:
                    raise ValueError("objective.logits > 0, but the teacher has no head; set objective.logits=0")
                parts["logits"] = goal.logits * logit_kl(logits, told.logits, goal.temperature)["loss"]
            if self._uses_labels():
                if labels is None:
                    raise ValueError("objective.cross_entropy > 0 needs labels; the batch has none")
                parts["cross_entropy"] = goal.cross_entropy * F.cross_entropy(logits.float(), labels)
        for name, value in solution.penalties.items():
            parts[name] = getattr(goal, name) * value
        loss = torch.stack([part.float() for part in parts.values()]).sum()
        return DistillationOutput(loss=loss, stats=solution.stats, parts={k: v.detach() for k, v in parts.items()})

    def _told(self, pixels: Pixels, index: Tensor | None) -> TeacherOutput:
        """What the teacher says of these images, from memory where it was written down."""
        goal = self.objective
        if self.features is None or index is None:
            return self.teacher(pixels, attentions=goal.attention_l1 > 0 or goal.attention_kl > 0)
        kept = self.features[index.cpu()]
        states = tuple(kept.states[layer].to(pixels.device) for layer in sorted(kept.states))
        return TeacherOutput(states, None if kept.logits is None else kept.logits.to(pixels.device))

    def _logits(self, state: Tokens) -> Logits:
        """What the frozen norm and head of the original make of a state."""
        logits = answer_of(self.student.model, self.student.readout(state)).logits
        if logits is None:
            raise ValueError(
                "the teacher has no head that gives logits; set objective.logits=0, or use a model for classification"
            )
        return logits

    def _uses_labels(self) -> bool:
        return self.objective.cross_entropy > 0 and self.progress >= self.objective.cross_entropy_from

    def _penalties(self) -> Mapping[str, Penalty]:
        found: dict[str, Penalty] = {}
        if self.objective.jasmin > 0:
            found["jasmin"] = JaSMin(self.objective.jasmin_k)
        if self.objective.transport > 0:
            found["transport"] = Transport()
        return found

    def _attention_parts(self, solution: Solution, told: TeacherOutput, meetings: tuple[int, ...]) -> dict[str, Tensor]:
        goal = self.objective
        if not (goal.attention_l1 or goal.attention_kl):
            return {}
        if told.attentions is None:
            raise ValueError(
                "attention matching needs the teacher's maps, which it does not give; set the weights to 0"
            )
        # The map that led to the state at step n was made in that step: the last one of its evaluations.
        per_step = len(solution.attentions) // solution.stats.steps
        # The teacher knows nothing of the student's registers: its tokens alone are compared.
        tokens = told.states[0].shape[1]
        made = [solution.attentions[n * per_step - 1][..., :tokens, :tokens] for n in meetings]
        wanted = told.attentions[-len(meetings) :]
        parts: dict[str, Any] = {}
        for name, distance in (("attention_l1", attention_l1), ("attention_kl", attention_kl)):
            weight = getattr(goal, name)
            if weight > 0:
                each = [distance(a, b)["loss"] for a, b in zip(made, wanted, strict=True)]
                parts[name] = weight * torch.stack(each).mean()
        return parts

    def _forced(
        self, states: tuple[Tokens, ...], meetings: tuple[int, ...], solver: str | Solver | None, steps: int
    ) -> list[Tokens]:
        """From [P h_0 + p; r] to h_1, from [P h_1; r] to h_2, ...: every stretch begins at the teacher's own state.

        So the field learns each layer before it walks the whole way.
        """
        encoder, found, begin = self.student.encoder, [], 0
        first = encoder.enter(states[0])
        dynamics = encoder.field.dynamics(first)
        length = encoder.depth.horizon / steps
        starts = states[-len(meetings) - 1 : -1]
        for end, start in zip(meetings, starts, strict=True):
            stretch = solve(
                dynamics,
                first if begin == 0 else self._midway(start, first),
                solver=encoder.depth.solver if solver is None else solver,
                steps=end - begin,
                t0=begin * length,
                t1=end * length,
            )
            found.append(encoder.leave(stretch.state))
            begin = end
        return found

    def _midway(self, state: Tokens, first: Tokens) -> Tokens:
        """[P h_l; r]: where a stretch begins that is not the first, which began at `first`."""
        # Stretches must join: where one ends the next begins, or the field learns to start from states that the student
        # never visits. A stretch is asked to end at h_l, so the next one begins at h_l, and not at h_l + p. Positions
        # belong to x(0): what a rotary teacher does with places, the first stretch has to work into the tokens. On its
        # own way a student of the teacher's width keeps no p either, once it meets h_l: its state has no room for more.
        project = self.student.encoder.in_proj
        x = state.to(first.dtype)
        x = x if project is None else project(x)
        # The teacher's states have no registers of the student's: every stretch begins with the learned ones. What the
        # registers gather on the whole way is learned when forcing ends.
        return torch.cat([x, first[:, x.shape[1] :]], dim=1)
