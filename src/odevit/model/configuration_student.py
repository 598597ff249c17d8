"""The one description of a student's depth; saved as encoder.json with the version of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from odevit.errors import ConfigError, unknown_name
from odevit.version import __version__

INITS = ("spectral", "average")


@dataclass(frozen=True)
class OdeEncoderConfig:
    """Everything that defines the equation in the place of a teacher's blocks. None means: as the teacher has it.

    Args:
        solver: how the student is integrated unless told otherwise.
        steps: N, the number of steps.
        horizon: T, the length of the trajectory; None is the number of the teacher's blocks, so that one unit of time
            is one block.
        hidden_size: width of the student's state; one that differs from the teacher's adds linear maps in and out.
        num_attention_heads: H; divides `hidden_size`.
        mlp_ratio: hidden width of the MLP over `hidden_size`.
        attention: `dot`, `l2`, `cosine` or `hopfield`.
        norm: `center`, `layer` or `rms`, inside the field.
        norm_eps: epsilon of those norms; matters where tokens are small.
        leak: pull towards the embedded image; 0 is the paper's equation.
        bias: whether the field's projections have one.
        residual_scale: start value of a learned per-channel factor on each component, or None for none.
        time_conditioned: whether the field knows the time.
        positions: whether learned positions are added to the patches of x(0): True, False, or "auto" for teachers
            that get their positions inside attention (rotary), which the field's attention does not have.
        registers: learned tokens of the student's own, which its teacher has not: they go through the equation behind
            the teacher's tokens and are left there when it ends. The paper's students have 10.
        init: `spectral` (every projection starts with spectral norm 1) or `average` (every weight of the field is the
            mean of the corresponding weights of the teacher's blocks; needs equal shapes).
    """

    solver: str = "lie_trotter"
    steps: int = 12
    horizon: float | None = 12.0
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    mlp_ratio: float = 4.0
    attention: str = "dot"
    norm: str = "layer"
    norm_eps: float | None = None
    leak: float = 0.0
    bias: bool = True
    residual_scale: float | None = None
    time_conditioned: bool = False
    positions: bool | str = "auto"
    registers: int = 0
    init: str = "spectral"

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise ConfigError("OdeEncoderConfig", problems)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OdeEncoderConfig:
        """A configuration from names and values; unknown names are refused with the nearest known one."""
        known = [field.name for field in fields(cls)]
        unknown = [unknown_name("key", name, known) for name in values if name not in (*known, "odevit_version")]
        if unknown:
            raise ConfigError("OdeEncoderConfig", unknown)
        return cls(**{name: value for name, value in values.items() if name in known})

    def changed(self, **overrides: Any) -> OdeEncoderConfig:
        """The same configuration with some values replaced."""
        return self.from_dict({**asdict(self), **overrides})

    def resolved(
        self, *, width: int, heads: int | None, blocks: int, eps: float | None, rotary: bool
    ) -> OdeEncoderConfig:
        """The configuration with every None that means "as the teacher has it" filled in."""
        chosen_heads = heads if self.num_attention_heads is None else self.num_attention_heads
        if chosen_heads is None:
            raise ConfigError(
                "OdeEncoderConfig",
                ["the teacher does not say how many attention heads it has; pass num_attention_heads=..."],
            )
        return replace(
            self,
            horizon=float(blocks) if self.horizon is None else self.horizon,
            hidden_size=width if self.hidden_size is None else self.hidden_size,
            num_attention_heads=chosen_heads,
            norm_eps=(1e-6 if eps is None else eps) if self.norm_eps is None else self.norm_eps,
            positions=rotary if self.positions == "auto" else self.positions,
        )

    def save(self, path: str | Path) -> None:
        """Write JSON with the version of the library."""
        content = {**asdict(self), "odevit_version": __version__}
        Path(path).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> OdeEncoderConfig:
        """Read what `save` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text()))

    def problems(self) -> list[str]:
        """All that is wrong, as sentences."""
        from odevit.field import ATTENTIONS, NORMS
        from odevit.solver import SOLVERS

        named = [ATTENTIONS.problem(self.attention), NORMS.problem(self.norm), SOLVERS.problem(self.solver)]
        found = [problem for problem in named if problem]
        if self.init not in INITS:
            found.append(unknown_name("init", self.init, INITS))

        def check(name: str, fine: bool, wanted: str) -> None:
            if not fine:
                found.append(f"{name}={getattr(self, name)!r}; expected {wanted}")

        check("steps", _whole(self.steps, 1), "a whole number, at least 1")
        check("hidden_size", self.hidden_size is None or _whole(self.hidden_size, 2), "None or a whole number >= 2")
        heads = self.num_attention_heads
        check("num_attention_heads", heads is None or _whole(heads, 1), "None or a whole number >= 1")
        check("horizon", self.horizon is None or (_number(self.horizon) and self.horizon > 0), "None or a number > 0")
        check("mlp_ratio", _number(self.mlp_ratio) and self.mlp_ratio > 0, "a number > 0")
        eps = self.norm_eps
        check("norm_eps", eps is None or (_number(eps) and eps > 0), "None or a number > 0")
        check("leak", _number(self.leak) and self.leak >= 0, "a number >= 0")
        check("residual_scale", self.residual_scale is None or _number(self.residual_scale), "None or a number")
        check("registers", _whole(self.registers, 0), "a whole number, at least 0")
        check("positions", self.positions in (True, False, "auto"), "True, False or 'auto'")
        if not found and self.hidden_size is not None and heads is not None and self.hidden_size % heads:
            fitting = [n for n in range(1, 33) if self.hidden_size % n == 0]
            found.append(
                f"num_attention_heads={heads} does not divide hidden_size={self.hidden_size}; choose one of {fitting}"
            )
        return found


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
