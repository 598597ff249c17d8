"""(x(t) - mean) V, V the two directions of largest variance: trajectories in a plane (the paper's Fig. 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Paths:
    """Trajectories of student and teacher in one plane.

    Args:
        student: [image, step, 2].
        teacher: [image, layer, 2].
        explained: the share of the variance along each of the two axes.
    """

    student: Tensor
    teacher: Tensor
    explained: tuple[float, float]


def pca_paths(student_states: Tensor, teacher_states: Tensor) -> Paths:
    """Both trajectories in the plane in which all their states together vary most.

    The axes are of student and teacher together: those of the teacher alone would hide where a student leaves it.

    Args:
        student_states: [step, image, dim], one token of each image.
        teacher_states: [layer, image, dim], the same token.
    """
    if student_states.ndim != 3 or student_states.shape[1:] != teacher_states.shape[1:]:
        raise ValueError(
            f"the student's states are {list(student_states.shape)}, the teacher's {list(teacher_states.shape)}; "
            "expected [step, image, dim] and [layer, image, dim] of the same images and width: choose one token"
        )
    together = torch.cat([student_states, teacher_states]).double()
    centred = together - together.mean(dim=(0, 1))
    _, lengths, axes = torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)
    if len(axes) < 2:
        raise ValueError("one state, or one dimension, spans no plane; expected two of each at least")
    # The sign of an axis is arbitrary; the same states must not be drawn mirrored the next time.
    largest = axes[:2].gather(1, axes[:2].abs().argmax(dim=1, keepdim=True))
    flat = (centred @ (axes[:2] * largest.sign()).T).float().transpose(0, 1)
    shares = lengths.square() / lengths.square().sum().clamp_min(1e-30)
    steps = len(student_states)
    return Paths(flat[:, :steps], flat[:, steps:], (float(shares[0]), float(shares[1])))
