"""The one description of a student: its equation, and the ViT that the equation was put into."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, ClassVar

from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from odevit.depth import DEPTHS
from odevit.errors import ConfigError, Expected, number, unknown_name, whole
from odevit.model.anatomy import Anatomy
from odevit.model.configuration_equation import EquationConfig
from odevit.model.processor import PixelStatistics

PIXEL_FIELDS = ("image_size", "num_channels", "image_mean", "image_std")
TEACHERS_FIELDS = ("base", "base_config", "anatomy", "original_parameters", *PIXEL_FIELDS)
"""What the teacher decides."""


class OdeStudentConfig(EquationConfig):
    """Everything that defines the equation in the place of a teacher's blocks. None means: as the teacher has it.

    Args:
        horizon: T, the length of the trajectory; None is the number of the teacher's blocks, so that one unit of time
            is one block.
        hidden_size: width of the student's state; one that differs from the teacher's adds linear maps in and out.
        positions: whether learned positions are added to the patches of x(0): True, False, or "auto" for teachers
            that get their positions inside attention (rotary), which the field's attention does not have.
        registers: learned tokens of the student's own, which its teacher does not have: they go through the equation
            behind the teacher's tokens and are dropped when it ends. The paper's students have 10.
        init: `spectral` (every projection starts with spectral norm 1) or `average` (every weight of the field is the
            mean of the corresponding weights of the teacher's blocks; needs equal shapes).
        base, base_config, anatomy, original_parameters: the ViT that was operated on, filled in by `get_ode_model`:
            its library, class and arguments, its own configuration, where its blocks stood, and its size.
        image_size, num_channels, image_mean, image_std: of the images it takes, filled in likewise.

    The other arguments of the equation are those of `EquationConfig`.
    """

    model_type = "odevit_student"
    sub_configs = {"base_config": AutoConfig}  # noqa: RUF012 (Hugging Face expects a dictionary)

    num_attention_heads: int | None = None
    mlp_ratio: float = 4.0
    leak: float = 0.0
    bias: bool = True
    solver: str = "lie_trotter"
    horizon: float | None = 12.0
    positions: bool | str = "auto"
    registers: int = 0
    init: str = "spectral"
    base: dict[str, Any] | None = None
    base_config: dict[str, Any] | PreTrainedConfig | None = None
    anatomy: dict[str, Any] | None = None
    original_parameters: int = 0
    image_size: int | list[int] | None = None
    num_channels: int = 3
    image_mean: list[float] | None = None
    image_std: list[float] | None = None

    choices: ClassVar[dict[str, Collection[str]]] = {**EquationConfig.choices, "init": ("spectral", "average")}
    rules: ClassVar[dict[str, Expected]] = {
        **EquationConfig.rules,
        "hidden_size": whole(2, optional=True),
        "num_attention_heads": whole(1, optional=True),
        "horizon": number(above=0, optional=True),
        "registers": whole(),
        "positions": Expected("True, False or 'auto'", lambda v: isinstance(v, bool) or v == "auto"),
    }

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.base_config, dict):
            self.base_config = AutoConfig.for_model(**self.base_config)
        super().__post_init__(**kwargs)

    @classmethod
    def equation_fields(cls) -> dict[str, Any]:
        """What can be asked of a student, with the defaults: everything but what the teacher decides."""
        return {name: getattr(cls, name) for name in cls.own_fields() if name not in TEACHERS_FIELDS}

    def changed(self, **overrides: Any) -> OdeStudentConfig:
        """The same configuration with some values replaced; unknown names are refused with the nearest known one."""
        if not overrides:
            return self
        unknown = [unknown_name("key", name, self.own_fields()) for name in overrides if name not in self.own_fields()]
        if unknown:
            raise ConfigError("OdeStudentConfig", unknown)
        return type(self)(**{name: getattr(self, name) for name in self.own_fields()} | overrides)

    def completed(
        self,
        vit: nn.Module,
        anatomy: Anatomy,
        base: dict[str, Any],
        base_config: PreTrainedConfig | None,
        statistics: PixelStatistics | None,
    ) -> OdeStudentConfig:
        """The configuration for a ViT: its shapes, how to build it, its size, its classes and its pixels."""
        heads = self.num_attention_heads or anatomy.heads
        if heads is None:
            raise ConfigError(
                "OdeStudentConfig",
                ["the teacher does not say how many attention heads it has; pass num_attention_heads=..."],
            )
        values: dict[str, Any] = {
            "horizon": self.horizon or float(anatomy.blocks),
            "hidden_size": self.hidden_size or anatomy.width,
            "num_attention_heads": heads,
            "norm_eps": self.norm_eps or anatomy.eps or 1e-6,
            "positions": anatomy.rotary if self.positions == "auto" else self.positions,
            "base": base,
            "base_config": base_config,
            "anatomy": {**asdict(anatomy), "size": list(anatomy.size)},
            "original_parameters": sum(parameter.numel() for parameter in vit.parameters()),
            "image_size": anatomy.size[0] if anatomy.size[0] == anatomy.size[1] else list(anatomy.size),
            "num_channels": anatomy.channels,
        }
        if statistics is not None:
            values |= {"image_mean": list(statistics.mean), "image_std": list(statistics.std)}
        config = self.changed(**values)
        if anatomy.labels is not None:
            config.num_labels = anatomy.labels
            names = getattr(getattr(vit, "config", None), "id2label", None) or {}
            if len(names) == anatomy.labels:
                config.id2label = {int(number): str(name) for number, name in names.items()}
                config.label2id = {name: number for number, name in config.id2label.items()}
        return config

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.depth in DEPTHS and not DEPTHS[self.depth].has_trajectory:
            able = ", ".join(repr(name) for name, kind in DEPTHS.items() if kind.has_trajectory)
            problems.append(f"depth={self.depth!r}; a student follows its teacher along a trajectory, expected {able}")
        return problems or self.head_problems()
