"""T^2 KL(softmax(z_teacher / T) || softmax(z_student / T)): a student answers as its teacher does."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from odevit.objectives.precision import at_least_single
from odevit.shapes import Logits


def logit_kl(student: Logits, teacher: Logits, temperature: float = 1.0) -> dict[str, Tensor]:
    """T^2 KL(softmax(z_teacher / T) || softmax(z_student / T)), the mean over the batch (Hinton et al. 2015).

    T^2 keeps the size of the gradient when T changes. No gradient reaches the teacher.
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
