"""L = path + a attention + b logits + c JaSMin + d transport + e cross entropy: what a student is asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class DistillObjective:
    """Weights of the parts of the loss, and when they count. The default is ours: all tokens, logits, no labels.

    The paper's own is `cls=1, patches=0, logits=0, jasmin=1, jasmin_k=2`.
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
    jasmin: float = 0.0
    """Weight of JaSMin_k; costs the fused kernel."""
    jasmin_k: int = 2
    transport: float = 0.0
    """Weight of the transport cost, mean |dx/dt|^2."""
    cross_entropy: float = 0.0
    """Weight of the cross entropy with labels; 0 distils without labels."""
    cross_entropy_from: float = 0.0
    """Fraction of training after which it counts."""
    unfreeze_head: bool = False
    """Whether the head is trained as well, from then on."""
    forced: float = 0.0
    """Fraction of training at its beginning in which every stretch starts at the teacher's own state."""

    def problems(self) -> list[str]:
        """All that is wrong, as sentences."""
        found = []
        if self.path not in ("all", "last"):
            found.append(f"objective.path={self.path!r}; expected all or last")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and value < 0:
                found.append(f"objective.{each.name}={value}; expected a number >= 0")
        for name in ("cross_entropy_from", "forced"):
            if not 0 <= getattr(self, name) <= 1:
                found.append(f"objective.{name}={getattr(self, name)}; expected a fraction of training in [0, 1]")
        if self.jasmin > 0 and (self.jasmin_k < 0 or self.jasmin_k == 1):
            found.append(f"objective.jasmin_k={self.jasmin_k}; expected 0, or 2 and more")
        if not self.temperature > 0:
            found.append(f"objective.temperature={self.temperature}; expected a number > 0")
        if self.unfreeze_head and self.cross_entropy == 0:
            found.append("objective.unfreeze_head=true needs labels to train on; set objective.cross_entropy=1.0")
        if self.forced > 0 and self.path != "all":
            found.append("objective.forced > 0 starts every stretch at a layer's state and needs objective.path=all")
        if not any((self.cls, self.patches, self.registers, self.logits, self.cross_entropy)):
            found.append("every weight of the objective is 0; set objective.cls=1.0, say")
        return found
