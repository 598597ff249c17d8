"""L = sum_g w_g |x_g - h_g|^2 / v + w |f - g|^2 / v + w KL + ...: the loss of a distillation, as keys."""

from __future__ import annotations

from dataclasses import dataclass

from odevit.errors import FRACTION, Expected, one_of, real, validate
from odevit.train.loss import Penalised

TOKENS = ("cls", "patches", "registers", "others")
WEIGHTS = (*TOKENS, "attention_l1", "attention_kl", "pooled", "logits", "cross_entropy")
OBJECTIVE_RULES = {
    "path": one_of("all", "last"),
    "scale": one_of("none", "state", "increment"),
    "match": one_of("nearest", "exact"),
    **dict.fromkeys(WEIGHTS, real(minimum=0)),
    **dict.fromkeys(
        ("cross_entropy_from", "teacher_forcing"), Expected("a fraction of training in [0, 1]", FRACTION.accepts)
    ),
    "temperature": real(above=0, maximum=1e6),
}


@dataclass
class DistillObjective(Penalised):
    """Weights of the parts of the loss, and when they count. By default all tokens and logits count, labels do not.

    The paper's loss is `cls=6, patches=0, logits=0, jasmin=1, jasmin_k=10`. Every penalty of a trajectory adds keys for
    its weight and its options.
    """

    path: str = "all"
    """Compare the states at `all` matched layers, or only the `last` state."""
    cls: float = 1.0
    """Weight of the error of the CLS token; for a teacher without one, it is added to that of the others."""
    patches: float = 1.0
    """Weight of the error of the patches; 0 in the paper."""
    registers: float = 0.0
    """Weight of the error of the teacher's registers."""
    others: float = 0.0
    """Weight of the error of all tokens but CLS, as one group."""
    scale: str = "none"
    """What the error at a layer is divided by: `none`, the variance of the teacher's `state`, or of its `increment`
    since the layer before."""
    match: str = "nearest"
    """When a layer is compared: at the `nearest` step, or only where a step ends at `exact`ly the layer's time."""
    attention_l1: float = 0.0
    """Weight of the L1 distance of thresholded attention; costs the fused kernel."""
    attention_kl: float = 0.0
    """Weight of the KL divergence of attention; costs the fused kernel."""
    pooled: float = 0.0
    """Weight of the error of the head's input, the last state after norm and pooling, over its variance between
    images."""
    logits: float = 1.0
    """Weight of the KL divergence from the teacher's logits."""
    temperature: float = 1.0
    """Temperature of that divergence."""
    cross_entropy: float = 0.0
    """Weight of the cross entropy with labels; 0 distils without labels."""
    cross_entropy_from: float = 0.0
    """Fraction of training after which it counts."""
    unfreeze_head: bool = False
    """Whether the head is trained too, from then on."""
    teacher_forcing: float = 0.0
    """Initial fraction of training in which every segment starts at the teacher's state."""

    @property
    def needs_attentions(self) -> bool:
        """Whether attention maps of student and teacher are compared."""
        return self.attention_l1 > 0 or self.attention_kl > 0

    def problems(self) -> list[str]:
        """All problems, as sentences."""
        problems = self.penalty_problems("objective") + [f"objective.{p}" for p in validate(self, OBJECTIVE_RULES)]
        if self.unfreeze_head and self.cross_entropy == 0:
            problems.append("objective.unfreeze_head=true needs labels to train on; set objective.cross_entropy=1.0")
        if self.teacher_forcing > 0 and self.path != "all":
            problems.append(
                "objective.teacher_forcing > 0 starts every segment at a layer's state and needs objective.path=all"
            )
        if problems:
            return problems  # weights that are not numbers cannot be compared
        counted = {name for name in WEIGHTS if getattr(self, name)}
        if not counted:
            problems.append("nothing is asked of the student: every weight is 0; set for example objective.cls=1.0")
        if counted == {"cross_entropy"} and self.cross_entropy_from > 0:
            problems.append(
                f"objective.cross_entropy_from={self.cross_entropy_from}, but nothing else counts until then; set it "
                "to 0"
            )
        return problems
