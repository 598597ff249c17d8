"""The configuration of a student: its equation, and the ViT that the equation was put into."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, ClassVar

from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from odevit.core.attention import ATTENTIONS
from odevit.core.base import DEPTHS
from odevit.core.configuration import FINEST, WIDEST, OdeConfig
from odevit.core.field import VectorField
from odevit.core.solver_config import MOST_STEPS
from odevit.errors import MAX_TIME, ConfigError, Expected, integer, real, unknown_name
from odevit.hf.config_rules import EQUATION_CHOICES, EQUATION_RULES, equation_problems, head_problems
from odevit.hf.processor import PixelStatistics
from odevit.surgery.block_adapter import block_spec
from odevit.surgery.vit_spec import VitSpec

PIXEL_FIELDS = ("image_size", "num_channels", "image_mean", "image_std")
TEACHERS_FIELDS = ("base", "base_config", "anatomy", "original_parameters", *PIXEL_FIELDS)
"""Settings that are always the teacher's."""
INHERITED = ("mlp_ratio", "attention", "norm", "bias", "activation", "gated", "qk_norm", "rope_theta")
"""Settings that are those of the teacher's blocks unless given."""


class OdeStudentConfig(OdeConfig):
    """The equation in place of a teacher's blocks. None means: the teacher's value.

    Args:
        steps: from 0 to T; None is one for each of the teacher's blocks.
        horizon: T, the length of the trajectory; None is the number of the teacher's blocks, so that one unit of time
            is one block.
        hidden_size: width of the student's state; another one than the teacher's adds linear maps in and out.
        mlp_ratio, attention, attention_options, norm, bias, activation, gated, qk_norm, rope_theta, norm_eps: also the
            teacher's, if a field can have them.
        vector_knots: a number, None, or "blocks": as many as the teacher has blocks, if that is more than `knots`.
            `vector_blend` is for those.
        positions: whether learned positions are added to the patches of x(0): True, False, or "auto" for teachers
            whose attention adds positions where that of the field does not.
        registers: learned tokens that only the student has, appended to the teacher's tokens and dropped at T. The
            paper's students have 10.
        init: `average` (the field starts as means of the teacher's blocks, one for every knot; needs equal shapes),
            `spectral` (every projection starts with spectral norm 1), or `auto`: `average` for a field with knots whose
            shapes are the teacher's, else `spectral`. `inherit` is `average`, if possible, for a field without knots
            too; it then starts far from its teacher and has to learn each layer by itself first.
        base, base_config, anatomy, original_parameters: the original ViT, filled in by `get_ode_model`: its library,
            class and arguments, its own configuration, its `VitSpec`, and its size.
        image_size, num_channels, image_mean, image_std: of the images it takes, filled in as well.

    The other arguments of the equation are those of `OdeConfig`.
    """

    model_type = "odevit_student"
    auto_classes = {  # noqa: RUF012
        "AutoConfig": "OdeStudentConfig",
        "AutoModel": "OdeStudent",
        "AutoModelForImageClassification": "OdeStudent",
    }
    sub_configs = {"base_config": AutoConfig}  # noqa: RUF012 (Hugging Face expects a dictionary)

    num_attention_heads: int | None = None
    mlp_ratio: float | None = None
    attention: str | None = None
    norm: str | None = None
    leak: float = 0.0
    vector_knots: int | str | None = None  # type: ignore[assignment]
    bias: bool | None = None
    activation: str | None = None
    gated: bool | None = None
    qk_norm: bool | None = None
    rope_theta: float | None = None
    solver: str = "lie_trotter"
    steps: int | None = None  # type: ignore[assignment]
    horizon: float | None = None
    positions: bool | str = "auto"
    registers: int = 0
    init: str = "auto"
    base: dict[str, Any] | None = None
    base_config: dict[str, Any] | PreTrainedConfig | None = None
    anatomy: dict[str, Any] | None = None
    original_parameters: int = 0
    image_size: int | list[int] | None = None
    num_channels: int = 3
    image_mean: list[float] | None = None
    image_std: list[float] | None = None

    choices: ClassVar[dict[str, Collection[str]]] = {
        **EQUATION_CHOICES,
        "init": ("auto", "inherit", "spectral", "average"),
    }
    inherited: ClassVar[tuple[str, ...]] = INHERITED
    rules: ClassVar[dict[str, Expected]] = {
        **EQUATION_RULES,
        "steps": integer(1, MOST_STEPS, optional=True),
        "mlp_ratio": real(above=0, maximum=1024, optional=True),
        "hidden_size": integer(2, WIDEST, optional=True),
        "num_attention_heads": integer(1, WIDEST, optional=True),
        "horizon": real(above=0, maximum=MAX_TIME, optional=True),
        "vector_knots": Expected(
            f"{integer(2, MOST_STEPS).description}, or 'blocks'",
            lambda v: v == "blocks" or integer(2, MOST_STEPS, optional=True).accepts(v),
        ),
        "registers": integer(0, FINEST),
        "positions": Expected("True, False or 'auto'", lambda v: isinstance(v, bool) or v == "auto"),
    }

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.base_config, dict):
            self.base_config = AutoConfig.for_model(**self.base_config)
        super().__post_init__(**kwargs)

    @classmethod
    def equation_fields(cls) -> dict[str, Any]:
        """The settings that can be given, with their defaults: all but those that are always the teacher's."""
        return {name: getattr(cls, name) for name in cls.own_fields() if name not in TEACHERS_FIELDS}

    def changed(self, **overrides: Any) -> OdeStudentConfig:
        """The same configuration with some values replaced; unknown names are refused with the nearest known one."""
        unknown = [unknown_name("key", name, self.own_fields()) for name in overrides if name not in self.own_fields()]
        if unknown:
            raise ConfigError("OdeStudentConfig", unknown)
        return type(self)(**{name: getattr(self, name) for name in self.own_fields()} | overrides)

    def resolve_for(
        self,
        vit: nn.Module,
        vit_spec: VitSpec,
        base: dict[str, Any],
        base_config: PreTrainedConfig | None,
        statistics: PixelStatistics | None,
    ) -> OdeStudentConfig:
        """The configuration for a ViT, every None replaced by the value of that ViT."""
        heads = self.num_attention_heads or vit_spec.heads
        if heads is None:
            raise ConfigError(
                "OdeStudentConfig",
                ["the number of the teacher's attention heads was not found; pass num_attention_heads=..."],
            )
        block, steps = self._of_block(vit, vit_spec, heads), self.steps or vit_spec.blocks
        vectors = self._vector_knots(vit_spec.blocks, steps)
        needs_positions = vit_spec.rotary and not block["rope_theta"]
        values: dict[str, Any] = block | {
            "steps": steps,
            "vector_knots": vectors,
            "vector_blend": None if vectors is None else self.vector_blend,
            "horizon": self.horizon or float(vit_spec.blocks),
            "hidden_size": self.hidden_size or vit_spec.width,
            "num_attention_heads": heads,
            "norm_eps": self.norm_eps or vit_spec.eps or 1e-6,
            "positions": needs_positions if self.positions == "auto" else self.positions,
            "base": base,
            "base_config": base_config,
            "anatomy": {**asdict(vit_spec), "size": list(vit_spec.size)},
            "original_parameters": sum(parameter.numel() for parameter in vit.parameters()),
            "image_size": vit_spec.size[0] if vit_spec.size[0] == vit_spec.size[1] else list(vit_spec.size),
            "num_channels": vit_spec.channels,
        }
        if statistics is not None:
            values |= {"image_mean": list(statistics.mean), "image_std": list(statistics.std)}
        config = self.changed(**values)
        if vit_spec.labels is not None:
            config.num_labels = vit_spec.labels
            names = getattr(getattr(vit, "config", None), "id2label", None) or {}
            if len(names) == vit_spec.labels:
                config.id2label = {int(number): str(name) for number, name in names.items()}
                config.label2id = {name: number for number, name in config.id2label.items()}
        return config

    def _of_block(self, vit: nn.Module, vit_spec: VitSpec, heads: int) -> dict[str, Any]:
        """The settings of the teacher's blocks, except for those that are given."""
        block = vit_spec.locator.blocks(vit)[0]
        spec = block_spec(block)
        attention, options = self.attention or spec.attention, self.attention_options
        if options is None and attention == spec.attention and isinstance(block, VectorField):
            options = getattr(getattr(vit, "config", None), "attention_options", None)
        supports_rotary = attention in ATTENTIONS and ATTENTIONS[attention].supports_rotary
        rotary = supports_rotary and (self.hidden_size or vit_spec.width) % (4 * heads) == 0
        values: dict[str, Any] = {
            "attention": attention,
            "attention_options": options,
            "mlp_ratio": spec.mlp_ratio or 4.0,
            "norm": spec.norm or "layer",
            "bias": spec.bias,
            "activation": spec.activation or "gelu",
            "gated": spec.gated,
            "qk_norm": supports_rotary and spec.qk_norm,
            "rope_theta": (rotary and vit_spec.theta) or 0.0,
        }
        return values | {name: value for name in INHERITED if (value := getattr(self, name)) is not None}

    def _vector_knots(self, blocks: int, steps: int) -> int | None:
        """The number of knots of the vectors; more knots than the teacher has blocks are refused."""
        vectors = self.vector_knots
        if vectors == "blocks":
            most = min(blocks, steps)
            vectors = most if most > self.knots and self.rank is None else None
        problems = [
            f"{name}={count}, but the teacher has {blocks} blocks; expected no more knots than blocks"
            for name, count in {"knots": self.knots, "vector_knots": vectors}.items()
            if isinstance(count, int) and count > blocks
        ]
        if problems:
            raise ConfigError("OdeStudentConfig", problems)
        return None if vectors is None else int(vectors)

    def problems(self) -> list[str]:
        problems = equation_problems(self, self.choices, self.rules, self.inherited)
        if self.depth in DEPTHS and not DEPTHS[self.depth].has_trajectory:
            able = ", ".join(repr(name) for name, kind in DEPTHS.items() if kind.has_trajectory)
            problems.append(f"depth={self.depth!r}; a student follows its teacher along a trajectory, expected {able}")
        return problems or head_problems(self)
