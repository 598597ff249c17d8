"""L = path + a attention + b logits + c cross entropy + sum_i w_i r_i: what a student is asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from odevit.train.penalised import Penalised


@dataclass
class DistillObjective(Penalised):
    """Weights of the parts of the loss, and when they count. The default is ours: all tokens, logits, no labels.

    The paper's own is `cls=1, patches=0, logits=0, jasmin=1, jasmin_k=2`. Beside these keys there are the weight and
    the options of every penalty of a trajectory.
    """

    path: str = "all"
    """`all` checkpoints, or only the `last` state."""
    cls: float = 1.0
    """Weight of the error of CLS."""
    patches: float = 1.0
    """Weight of the error of the patches; 0 is the paper's loss."""
    registers: float = 0.0
    """Weight of the error of the registers."""
    attention_l1: float = 0.0
    """Weight of the L1 distance of thresholded attention; costs the fused kernel."""
    attention_kl: float = 0.0
    """Weight of the KL divergence of attention; costs the fused kernel."""
    logits: float = 1.0
    """Weight of the KL divergence from the teacher's answer."""
    temperature: float = 1.0
    """Temperature of that divergence."""
    cross_entropy: float = 0.0
    """Weight of the cross entropy with labels; 0 distils without labels."""
    cross_entropy_from: float = 0.0
    """Fraction of training after which it counts."""
    unfreeze_head: bool = False
    """Whether the head is trained as well, from then on."""
    forced: float = 0.0
    """Initial fraction of training in which every stretch starts at the teacher's own state."""

    @property
    def needs_attentions(self) -> bool:
        """Whether attention maps of student and teacher are compared."""
        return self.attention_l1 > 0 or self.attention_kl > 0

    def problems(self) -> list[str]:
        """Everything that is wrong, as sentences."""
        problems = self.penalty_problems("objective")
        if self.path not in ("all", "last"):
            problems.append(f"objective.path={self.path!r}; expected all or last")
        for item in fields(DistillObjective):
            value = getattr(self, item.name)
            if isinstance(value, float) and value < 0:
                problems.append(f"objective.{item.name}={value}; expected a number >= 0")
        for name in ("cross_entropy_from", "forced"):
            if not 0 <= getattr(self, name) <= 1:
                problems.append(f"objective.{name}={getattr(self, name)}; expected a fraction of training in [0, 1]")
        if not self.temperature > 0:
            problems.append(f"objective.temperature={self.temperature}; expected a number > 0")
        if self.unfreeze_head and self.cross_entropy == 0:
            problems.append("objective.unfreeze_head=true needs labels to train on; set objective.cross_entropy=1.0")
        if self.forced > 0 and self.path != "all":
            problems.append("objective.forced > 0 starts every stretch at a layer's state and needs objective.path=all")
        if not any((self.cls, self.patches, self.registers, self.logits, self.cross_entropy)):
            problems.append("every weight of the objective is 0; set for example objective.cls=1.0")
        return problems
