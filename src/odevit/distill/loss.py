"""x(tau_l T) = h_l: the loss of a batch of images, from a frozen teacher and a student."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.solution import SaveAt, Solution
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.distill.alignment import Alignment
from odevit.distill.base import DistillationModule
from odevit.distill.objective import TOKENS, DistillObjective
from odevit.distill.teacher import Teacher, TeacherOutput
from odevit.objectives.attention_matching import attention_kl, attention_l1
from odevit.objectives.matching import channel_variance, logit_kl, path_matching, pooled_matching
from odevit.surgery.block_locator import capture_head_inputs, linear_heads
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.vit_spec import parse_output
from odevit.tokens import Pixels, TokenLayout, Tokens
from odevit.train.loss import BatchLoss


def layer_error(
    x: Tokens, y: Tokens, previous: Tokens | None, layout: TokenLayout, scale: str, weights: Mapping[str, float]
) -> Tensor:
    """sum_g w_g MSE(x_g, y_g) / v: the error of a student's state at a layer of its teacher.

    Args:
        x, y: state of the student and of the teacher.
        previous: the teacher's state at the layer before, if v is the variance of the increment since.
        layout: of the tokens.
        scale: `none` (v = 1), `state` or `increment`.
        weights: of the groups of tokens, by name.
    """
    over = None if scale == "none" else [channel_variance(y if previous is None else y - previous)]
    return path_matching([x], [y], layout, over=over, **weights)["loss"]


class LayerDistillation(DistillationModule):
    """sum over layers of the error of the student's states + the error of its outputs, see `DistillObjective`."""

    student: OdeStudent

    def __init__(
        self, student: OdeStudent, teacher: Teacher, alignment: Alignment, objective: DistillObjective
    ) -> None:
        super().__init__(student, teacher, objective)
        self.alignment = alignment
        # The fraction of the training that is over, and whether segments start at the teacher's states. The task sets
        # them before a step, as it may set the objective; forward changes nothing.
        self.progress = 0.0
        self.teacher_forcing = False
        self._layer_error: Callable[..., Tensor] = layer_error

    def compile_layer_error(self, backend: str = "inductor") -> None:
        """Compile the error at a layer: eager operations would read its states a dozen times."""
        self._layer_error = torch.compile(layer_error, dynamic=False, backend=backend)

    def forward(
        self, pixel_values: Pixels, labels: Tensor | None = None, *, solver_config: SolverConfig | None = None
    ) -> BatchLoss:
        """The loss of a batch, and its weighted parts by name.

        Args:
            pixel_values: normalised with the teacher's statistics.
            labels: class numbers or probabilities; used only when the objective has a cross entropy.
            solver_config: the student's unless given. Beyond the student's horizon the target stays the teacher's last
                state.
        """
        objective = self.objective
        solver_config = self.student.solver_config if solver_config is None else solver_config
        layout = self.student.teacher_layout(*pixel_values.shape[-2:])
        weights = self._token_weights(layout)
        target = self.teacher(pixel_values, attentions=objective.needs_attentions)
        layers = self.matched_layers(solver_config)
        beyond = (solver_config.steps,) if solver_config.steps > max(layers) else ()
        teacher_forcing = any(weights.values()) and (self.teacher_forcing or self.progress < objective.teacher_forcing)
        losses: dict[str, Tensor] = {}
        states: tuple[Tokens, ...] = ()
        # With teacher forcing alone, the trajectory from x(0) is not needed.
        if not teacher_forcing or beyond or objective.needs_attentions or objective.weights or self._needs_logits:
            encoder, start = self.student.encoder, target.states[0]
            solution = self.student.follow(
                encoder.encode_tokens(start),
                solver_config,
                save=SaveAt((*layers, *beyond), attentions=objective.needs_attentions),
                penalties=objective.penalties,
            )
            solution = encoder.decode_solution(solution, start.dtype)
            states = solution.states
            losses |= self._attention_losses(solution, target, layers)
            losses |= self._output_losses(solution.state, target, labels)
            losses |= {name: weight * solution.penalties[name] for name, weight in objective.weights.items()}
        if teacher_forcing:
            states = (*self._teacher_forced_states(target.states, layers, solver_config), *states[len(layers) :])
        if any(weights.values()):
            matched = [*layers.values(), *(layers[max(layers)] for _ in beyond)]
            previous: list[Tokens | None] = [None] * len(matched)
            if objective.scale == "increment":
                before = {layer: earlier for earlier, layer in pairwise([0, *dict.fromkeys(matched)])}
                previous = [target.states[before[layer]] for layer in matched]
            errors = [
                self._layer_error(x, target.states[layer], earlier, layout, objective.scale, weights)
                for x, layer, earlier in zip(states, matched, previous, strict=True)
            ]
            losses = {"path": torch.stack(errors).mean(), **losses}
        total = torch.stack([loss.float() for loss in losses.values()]).sum()
        return BatchLoss(total, {name: loss.detach() for name, loss in losses.items()})

    def matched_layers(self, solver_config: SolverConfig) -> dict[int, int]:
        """{step: layer}, in their order: at the end of which steps the student is compared with which layer."""
        objective, horizon = self.objective, self.student.solver_config.horizon
        # The last layer is matched at the student's horizon, whatever the number of steps.
        last, last_step = len(self.alignment.distances), round(solver_config.steps * horizon / solver_config.horizon)
        if not 1 <= last_step <= solver_config.steps:
            raise ValueError(
                f"the solver settings ({solver_config}) end before the student's horizon {horizon:g}, where the "
                "teacher's last layer is matched; expected a horizon at least as long"
            )
        if objective.path == "last":
            return {last_step: last}
        if objective.match == "exact":
            times = [horizon * fraction for fraction in self.alignment.fractions[:-1]]
            steps = [round(time / solver_config.step) for time in times]
            exact = {
                step: layer
                for layer, (step, time) in enumerate(zip(steps, times, strict=True), 1)
                if abs(step * solver_config.step - time) < 1e-6 * horizon and 0 < step < last_step
            }
            return {**exact, last_step: last}
        return {step: layer for layer, step in enumerate(self.alignment.indices(last_step), 1)}

    @property
    def uses_labels(self) -> bool:
        """Whether the cross entropy with labels counts at this point of the training."""
        return self.objective.cross_entropy > 0 and self.progress >= self.objective.cross_entropy_from

    @property
    def _needs_logits(self) -> bool:
        return self.objective.pooled > 0 or self.objective.logits > 0 or self.uses_labels

    @cached_property
    def _heads(self) -> list[nn.Linear]:
        vit_spec = self.student.vit_spec
        return linear_heads(self.student.model, vit_spec.locator, vit_spec.labels)

    def _token_weights(self, layout: TokenLayout) -> dict[str, float]:
        """The weights of the groups of tokens; without a CLS token, its weight is added to that of the others."""
        objective = self.objective
        weights = {name: getattr(objective, name) for name in TOKENS}
        if objective.others and not layout.has_cls:
            weights |= {"cls": 0.0, "others": objective.others + objective.cls}
        return weights

    def _output_losses(self, state: Tokens, target: TeacherOutput, labels: Tensor | None) -> dict[str, Tensor]:
        """The errors after the frozen norm, pooling and head of the original."""
        objective = self.objective
        if not self._needs_logits:
            return {}
        with capture_head_inputs(self._heads) as inputs:
            logits = parse_output(self.student.model, self.student.teacher_readout(state)).logits
        if logits is None or (target.logits is None and objective.logits > 0):
            raise ValueError(
                "the teacher has no head that gives logits; set objective.logits=0 and objective.cross_entropy=0, or "
                "use a model for classification"
            )
        losses = {}
        if objective.pooled > 0:
            with torch.no_grad(), capture_head_inputs(self._heads) as target_inputs:
                self.student.teacher_readout(target.states[-1])
            losses["pooled"] = objective.pooled * pooled_matching(inputs, target_inputs)["loss"]
        if objective.logits > 0 and target.logits is not None:
            losses["logits"] = objective.logits * logit_kl(logits, target.logits, objective.temperature)["loss"]
        if self.uses_labels:
            if labels is None:
                raise ValueError("objective.cross_entropy > 0 needs labels; the batch has none")
            losses["cross_entropy"] = objective.cross_entropy * F.cross_entropy(logits.float(), labels)
        return losses

    def _attention_losses(
        self, solution: Solution, target: TeacherOutput, layers: Mapping[int, int]
    ) -> dict[str, Tensor]:
        """The distances between the attention maps of the steps and those of the matched layers."""
        if not self.objective.needs_attentions:
            return {}
        if target.attentions is None:
            raise ValueError(
                "attention matching needs the teacher's maps, which it does not give; set the weights to 0"
            )
        # One map per evaluation; that of the state at step n is the last of its step. A multistep method starts with
        # extra evaluations.
        per_step, extra = divmod(len(solution.attentions), solution.stats.steps)
        # The student may have registers of its own: only the teacher's tokens are compared.
        tokens = target.states[0].shape[1]
        maps = [solution.attentions[extra + step * per_step - 1][..., :tokens, :tokens] for step in layers]
        target_maps = [target.attentions[layer - 1] for layer in layers.values()]
        losses = {}
        for name, distance in (("attention_l1", attention_l1), ("attention_kl", attention_kl)):
            weight = getattr(self.objective, name)
            if weight > 0:
                distances = [distance(a, b)["loss"] for a, b in zip(maps, target_maps, strict=True)]
                losses[name] = weight * torch.stack(distances).mean()
        return losses

    def _teacher_forced_states(
        self, states: Sequence[Tokens], layers: Mapping[int, int], solver_config: SolverConfig
    ) -> list[Tokens]:
        """From [P h_0 + p; r] to h_1, from [P h_1; r] to h_2, ...: every segment starts at the teacher's state.

        The field learns each layer by itself, before the errors of one segment reach the next.
        """
        encoder, ends = self.student.encoder, []
        start = first = encoder.encode_tokens(states[0])
        dynamics = encoder.field.dynamics(first)
        for (begin, layer), (end, _) in pairwise([(0, 0), *layers.items()]):
            if begin > 0:
                # Segments join: one that has to end at h_l is followed by one that starts at h_l. Starting at h_l + p
                # would train the field at states that no trajectory visits; the positions p are added to x(0) alone.
                start = states[layer].to(first.dtype)
                start = start if encoder.in_proj is None else encoder.in_proj(start)
                # The teacher has no states for the student's registers: a segment starts with the learned ones.
                start = torch.cat([start, first[:, start.shape[1] :]], dim=1)
            t0, t1 = begin * solver_config.step, end * solver_config.step
            segment = solve(dynamics, start, solver=solver_config.method, steps=end - begin, t0=t0, t1=t1)
            ends.append(encoder.decode_tokens(segment.state))
        return ends
