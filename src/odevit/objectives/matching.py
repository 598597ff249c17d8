"""mean_i sum_g w_g |x_g(t_i) - y_g^i|^2, |f - g|^2, KL(q || p): losses between states and logits of two models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from odevit.errors import ConfigError
from odevit.objectives.vectors import at_least_single
from odevit.tokens import Logits, TokenLayout, Tokens


def path_matching(
    student: Sequence[Tokens],
    teacher: Sequence[Tokens],
    layout: TokenLayout,
    *,
    cls: float = 1.0,
    patches: float = 0.0,
    registers: float = 0.0,
    others: float = 0.0,
    over: Sequence[Tensor] | None = None,
) -> dict[str, Tensor]:
    """mean_i sum_g w_g MSE(x_g(t_i), y_g^i) / v_i, g in {cls, patches, registers, others}.

    cls alone is the paper's path loss on [CLS]; one checkpoint alone is its loss on the last state; cls=0.45,
    patches=0.45, registers=0.10 is RAPTOR's. The released code sums over checkpoints; the mean does not depend on their
    number. The teacher has no gradient.

    Args:
        student: its states at the checkpoints.
        teacher: the states to be reached there. It may lack the registers if none are matched.
        layout: of the student's tokens.
        cls, patches, registers: weights; a group of weight 0 is ignored.
        others: the weight of all the teacher's tokens but CLS, as one group.
        over: v_i, the divisor of the error at each checkpoint; 1 unless given. The `channel_variance` of the teacher's
            states gives all layers the same scale.

    Returns:
        `loss`, and without gradient: the mean error of each matched group, under its name and unweighted, and
        `checkpoints`, the weighted error at each checkpoint, whose mean is the loss.
    """
    weights = {"cls": cls, "patches": patches, "registers": registers, "others": others}
    rest = slice(layout.cls.stop, max(layout.patches.stop, layout.registers.stop))
    places = {"cls": layout.cls, "patches": layout.patches, "registers": layout.registers, "others": rest}
    problems = []
    for group, weight in weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            problems.append(f"{group}={weight}; expected a weight >= 0")
        elif weight > 0 and places[group].start == places[group].stop:
            problems.append(f"{group}={weight}, but the layout has no such tokens; pass {group}=0.0")
    if not problems and not any(weights.values()):
        problems.append("all weights are 0, nothing would be matched; pass cls=1.0, for example")
    problems += _state_problems(student, teacher, layout, registers + others)
    if problems:
        raise ConfigError("path_matching", problems)

    errors = {
        group: torch.stack([_error(x, y, places[group]) for x, y in zip(student, teacher, strict=True)])
        for group, weight in weights.items()
        if weight > 0
    }
    checkpoints = torch.stack([weights[group] * error for group, error in errors.items()]).sum(dim=0)
    if over is not None:
        checkpoints = checkpoints / torch.stack(list(over))
    means = {group: error.detach().mean() for group, error in errors.items()}
    return {"loss": checkpoints.mean(), **means, "checkpoints": checkpoints.detach()}


def logit_kl(student: Logits, teacher: Logits, temperature: float = 1.0) -> dict[str, Tensor]:
    """T^2 KL(softmax(z_teacher / T) || softmax(z_student / T)), the mean over the batch (Hinton et al. 2015).

    T^2 keeps the size of the gradient when T changes. The teacher has no gradient.
    """
    if student.ndim != 2 or student.shape != teacher.shape:
        raise ValueError(
            f"logits of the student {list(student.shape)} and of the teacher {list(teacher.shape)}; expected two of "
            "[batch, label] with the same labels"
        )
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature={temperature}; expected a finite number > 0, 1 leaves the logits as they are")
    log_p = F.log_softmax(at_least_single(student) / temperature, dim=-1)
    log_q = F.log_softmax(at_least_single(teacher.detach()) / temperature, dim=-1)
    return {"loss": temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)}


def pooled_matching(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> dict[str, Tensor]:
    """mean_h MSE(f_h, g_h) / mean_c Var(g_h,c): the error of the heads' inputs over their variance between images.

    A single image has no variance; its mean square is used. The teacher has no gradient.

    Args:
        student, teacher: the input of each head [batch, channel].
    """
    ours, theirs = ([list(x.shape) for x in given] for given in (student, teacher))
    if ours != theirs or not ours:
        raise ValueError(
            f"the inputs of the student's heads are {ours}, of the teacher's {theirs}; expected the same shapes, of at "
            "least one head"
        )
    errors = []
    for x, y in zip(student, teacher, strict=True):
        goal = at_least_single(y.detach())
        size = goal.var(dim=0).mean() if len(goal) > 1 else goal.square().mean()
        errors.append(F.mse_loss(at_least_single(x), goal) / (size + 1e-6))
    return {"loss": torch.stack(errors).mean()}


def channel_variance(y: Tokens) -> Tensor:
    """mean_c Var(y_c) + 1e-6, the variance of each channel over samples and tokens."""
    return at_least_single(y.detach()).var(dim=(0, 1)).mean() + 1e-6


def _error(x: Tokens, y: Tokens, place: slice) -> Tensor:
    return F.mse_loss(at_least_single(x[:, place]), at_least_single(y[:, place].detach()))


def _state_problems(
    student: Sequence[Tokens], teacher: Sequence[Tokens], layout: TokenLayout, registers: float
) -> list[str]:
    if len(student) != len(teacher) or not student:
        return [
            f"{len(student)} states of the student and {len(teacher)} of the teacher; expected as many of each, at "
            "least one: choose the checkpoints with solve(..., save=[...])"
        ]
    problems = []
    # Registers are last: without them, CLS and patches have the same places.
    counts = {len(layout)} if registers > 0 else {len(layout), layout.patches.stop}
    for i, (x, y) in enumerate(zip(student, teacher, strict=True)):
        comparable = x.ndim == y.ndim == 3 and x.shape[::2] == y.shape[::2]
        if not (comparable and x.shape[1] == len(layout) and y.shape[1] in counts):
            problems.append(
                f"checkpoint {i}: student {list(x.shape)}, teacher {list(y.shape)}; expected two of [batch, token, dim]"
                f" with the same batch and dim, {len(layout)} tokens of the student and "
                f"{' or '.join(map(str, sorted(counts)))} of the teacher"
            )
    return problems
