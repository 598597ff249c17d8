"""x(tau_l T) = h_l: one step of distillation, from images to a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def meeting_error(
    x: Tokens, y: Tokens, before: Tokens | None, layout: TokenLayout, scale: str, weights: Mapping[str, float]
) -> Tensor:
    """sum_g w_g MSE(x_g, y_g) / v: the error of a student's state where it meets a layer of its teacher.

    Args:
        x, y: state of the student and of the teacher.
        before: the teacher's state before, if v is the variance of what it has added since.
        layout: where the student's tokens stand.
        scale: `none` (v = 1), `state` or `increment`.
        weights: of the groups of tokens, by name.
    """
    over = None if scale == "none" else [channel_variance(y if before is None else y - before)]
    return path_matching([x], [y], layout, over=over, **weights)["loss"]


class LayerDistillation(DistillationModule):
    """sum over layers of the error of the student's state + that of its answer, see `DistillObjective`."""

    student: OdeStudent

    def __init__(
        self, student: OdeStudent, teacher: Teacher, alignment: Alignment, objective: DistillObjective
    ) -> None:
        super().__init__(student, teacher, objective)
        self.alignment = alignment
        # How much of the training is over, and whether stretches start at the teacher's states now; set from outside
        # before a step, as the objective may be, never in forward.
        self.progress = 0.0
        self.teacher_forcing = False
        self._error: Callable[..., Tensor] = meeting_error

    def compile_error(self, backend: str = "inductor") -> None:
        """Compile the error at a layer, which would read its states a dozen times; all layers share what is made."""
        self._error = torch.compile(meeting_error, dynamic=False, backend=backend)

    def forward(
        self,
        pixel_values: Pixels,
        labels: Tensor | None = None,
        *,
        solver_config: SolverConfig | None = None,
    ) -> BatchLoss:
        """The loss of a batch, and its weighted parts by name.

        Args:
            pixel_values: normalised as the teacher wants them.
            labels: class numbers or probabilities; used only when the objective has a cross entropy.
            way: the student's own unless given. Beyond the student's own horizon the target stays the teacher's last
                state.
        """
        goal, solver_config = self.objective, self.student.solver_config if solver_config is None else solver_config
        layout = self.student.teacher_layout(*pixel_values.shape[-2:])
        target = self.teacher(pixel_values, attentions=goal.needs_attentions)
        meetings = self.meetings(solver_config)
        held = (solver_config.steps,) if solver_config.steps > max(meetings) else ()
        weights = self._token_weights(layout)
        teacher_forcing = any(weights.values()) and (self.teacher_forcing or self.progress < goal.teacher_forcing)
        parts: dict[str, Tensor] = {}
        others: dict[str, Tensor] = {}
        states: tuple[Tokens, ...] = ()
        # Forced alone, nothing has to go the whole way.
        if not teacher_forcing or held or goal.needs_attentions or goal.weights or self._asks_for_answers:
            encoder, start = self.student.encoder, target.states[0]
            solution = self.student.follow(
                encoder.encode_tokens(start),
                solver_config,
                save=SaveAt((*meetings, *held), attentions=goal.needs_attentions),
                penalties=goal.penalties,
            )
            solution = encoder.decode_solution(solution, start.dtype)
            states = solution.states
            others |= self._attention_parts(solution, target, meetings)
            others |= self._answer_parts(solution.state, target, labels)
            others |= {name: weight * solution.penalties[name] for name, weight in goal.weights.items()}
        if teacher_forcing:
            states = (*self._forced(target.states, meetings, solver_config), *states[len(meetings) :])
        if any(weights.values()):
            layers = [*meetings.values(), *(meetings[max(meetings)] for _ in held)]
            before = self._before(target.states, layers)
            errors = [
                self._error(x, target.states[layer], earlier, layout, goal.scale, weights)
                for x, layer, earlier in zip(states, layers, before, strict=True)
            ]
            parts["path"] = torch.stack(errors).mean()
        parts |= others
        loss = torch.stack([part.float() for part in parts.values()]).sum()
        return BatchLoss(loss, {name: part.detach() for name, part in parts.items()})

    def meetings(self, solver_config: SolverConfig) -> dict[int, int]:
        """Which layer of the teacher is met at which step of a way: step -> layer, in their order."""
        # The last layer is met at the end of the student's own horizon, however few steps lead there.
        goal, arrival, last = self.objective, self._arrival(solver_config), len(self.alignment.distances)
        if goal.path == "last":
            return {arrival: last}
        if goal.match == "exact":
            own = self.student.solver_config.horizon
            times = [own * fraction for fraction in self.alignment.fractions[:-1]]
            steps = [round(time / solver_config.step) for time in times]
            met = {
                n: layer
                for layer, (n, time) in enumerate(zip(steps, times, strict=True), 1)
                if abs(n * solver_config.step - time) < 1e-6 * own
            }
            return {**{n: layer for n, layer in met.items() if 0 < n < arrival}, arrival: last}
        return {n: layer for layer, n in enumerate(self.alignment.indices(arrival), 1)}

    @property
    def uses_labels(self) -> bool:
        """Whether labels count by now."""
        return self.objective.cross_entropy > 0 and self.progress >= self.objective.cross_entropy_from

    @property
    def _asks_for_answers(self) -> bool:
        """Whether anything behind the last state counts by now."""
        return self.objective.pooled > 0 or self.objective.logits > 0 or self.uses_labels

    @cached_property
    def _heads(self) -> list[nn.Linear]:
        vit_spec = self.student.vit_spec
        return linear_heads(self.student.model, vit_spec.locator, vit_spec.labels)

    def _token_weights(self, layout: TokenLayout) -> dict[str, float]:
        """The weights of the groups of tokens; without a CLS, all others have its weight as well as their own."""
        goal = self.objective
        weights = {name: getattr(goal, name) for name in TOKENS}
        if goal.others and not layout.has_cls:
            weights |= {"cls": 0.0, "others": goal.others + goal.cls}
        return weights

    def _before(self, states: tuple[Tokens, ...], layers: list[int]) -> list[Tokens | None]:
        """Where the teacher came from to each of these layers, if the error is measured by its increment."""
        if self.objective.scale != "increment":
            return [None] * len(layers)
        earlier = {layer: before for before, layer in pairwise([0, *dict.fromkeys(layers)])}
        return [states[earlier[layer]] for layer in layers]

    def _arrival(self, solver_config: SolverConfig) -> int:
        """The step of a way at which the student's own horizon is reached."""
        own = self.student.solver_config.horizon
        arrival = round(solver_config.steps * own / solver_config.horizon)
        if not 1 <= arrival <= solver_config.steps:
            raise ValueError(
                f"the solver settings ({solver_config}) end before the student's horizon {own:g}, where the teacher's "
                "last layer is matched; expected a horizon at least as long"
            )
        return arrival

    def _answer_parts(self, state: Tokens, target: TeacherOutput, labels: Tensor | None) -> dict[str, Tensor]:
        """The errors of what the frozen norm, pooling and head of the original make of the last state."""
        goal = self.objective
        if not self._asks_for_answers:
            return {}
        with capture_head_inputs(self._heads) as ours:
            logits = parse_output(self.student.model, self.student.teacher_readout(state)).logits
        if logits is None or (target.logits is None and goal.logits > 0):
            raise ValueError(
                "the teacher has no head that gives logits; set objective.logits=0 and objective.cross_entropy=0, or "
                "use a model for classification"
            )
        parts = {}
        if goal.pooled > 0:
            with torch.no_grad(), capture_head_inputs(self._heads) as theirs:
                self.student.teacher_readout(target.states[-1])
            parts["pooled"] = goal.pooled * pooled_matching(ours, theirs)["loss"]
        if goal.logits > 0 and target.logits is not None:
            parts["logits"] = goal.logits * logit_kl(logits, target.logits, goal.temperature)["loss"]
        if self.uses_labels:
            if labels is None:
                raise ValueError("objective.cross_entropy > 0 needs labels; the batch has none")
            parts["cross_entropy"] = goal.cross_entropy * F.cross_entropy(logits.float(), labels)
        return parts

    def _attention_parts(
        self, solution: Solution, target: TeacherOutput, meetings: dict[int, int]
    ) -> dict[str, Tensor]:
        goal = self.objective
        if not goal.needs_attentions:
            return {}
        if target.attentions is None:
            raise ValueError(
                "attention matching needs the teacher's maps, which it does not give; set the weights to 0"
            )
        # The map that led to the state at step n was made in that step: the last one of its evaluations.
        per_step, more = divmod(len(solution.attentions), solution.stats.steps)  # a method with memory begins with more
        # The teacher knows nothing of the student's registers: only its tokens are compared.
        tokens = target.states[0].shape[1]
        ours = [solution.attentions[more + n * per_step - 1][..., :tokens, :tokens] for n in meetings]
        theirs = [target.attentions[layer - 1] for layer in meetings.values()]
        parts = {}
        for name, distance in (("attention_l1", attention_l1), ("attention_kl", attention_kl)):
            weight = getattr(goal, name)
            if weight > 0:
                distances = [distance(a, b)["loss"] for a, b in zip(ours, theirs, strict=True)]
                parts[name] = weight * torch.stack(distances).mean()
        return parts

    def _forced(
        self, states: tuple[Tokens, ...], meetings: dict[int, int], solver_config: SolverConfig
    ) -> list[Tokens]:
        """From [P h_0 + p; r] to h_1, from [P h_1; r] to h_2, ...: every stretch begins at the teacher's own state.

        So the field learns each layer before it goes the whole way.
        """
        encoder, ends, begin = self.student.encoder, [], 0
        first = encoder.encode_tokens(states[0])
        dynamics = encoder.field.dynamics(first)
        layer = 0
        for end, reached in meetings.items():
            stretch = solve(
                dynamics,
                first if begin == 0 else self._midway(states[layer], first),
                solver=solver_config.method,
                steps=end - begin,
                t0=begin * solver_config.step,
                t1=end * solver_config.step,
            )
            ends.append(encoder.decode_tokens(stretch.state))
            begin, layer = end, reached
        return ends

    def _midway(self, state: Tokens, first: Tokens) -> Tokens:
        """[P h_l; r]: where every stretch but the first begins; that one began at `first`."""
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
