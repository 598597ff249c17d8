"""The one description of an image classifier, saved as config.json."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from transformers.backbone_utils import BackboneConfigMixin

from odevit.core.base import DEPTHS, HOOKS
from odevit.core.configuration import FINEST, WIDEST, OdeConfig
from odevit.core.embedding import TOKENIZERS
from odevit.core.layers import NORMS
from odevit.core.pooling import POOLINGS
from odevit.errors import BOOLEAN, MAX_TIME, PROBABILITY, Expected, integer, list_of, real, validate


class OdeViTConfig(BackboneConfigMixin, OdeConfig):
    """Everything that defines an ODE-ViT. The defaults are a small model with a leak.

    Args:
        embedding_dropout: probability of the dropout on the embedded image.
        image_size, num_channels: of the images.
        tokenizer: `patch` or `conv`.
        patch_size: side of a patch (tokenizer `patch`).
        tokenizer_channels: widths between the convolutions (tokenizer `conv`).
        use_cls_token, num_register_tokens, register_positions: the tokens beside the patches.
        pooling: `cls`, `mean` or `attention`.
        final_norm: norm between the last state and the head, or None.
        init: `spectral` (every projection of the field starts with spectral norm 1) or `normal`.
        initializer_range: standard deviation of everything that is not initialised spectrally.
        image_mean, image_std: pixel statistics the model was trained with, for the image processor.

    The settings of the equation are those of `OdeConfig`. `out_features` and `out_indices` choose the states that a
    backbone returns: "stem" is x(0), "stage1", ..., "stageN" are the states after the steps; x(T) unless given.
    """

    model_type = "odevit"
    auto_classes = {  # noqa: RUF012
        "AutoConfig": "OdeViTConfig",
        "AutoModel": "OdeViTModel",
        "AutoModelForImageClassification": "OdeViTForImageClassification",
        "AutoBackbone": "OdeViTBackbone",
    }

    hidden_size: int = 256
    embedding_dropout: float = 0.0
    image_size: int = 32
    num_channels: int = 3
    tokenizer: str = "patch"
    patch_size: int = 4
    tokenizer_channels: tuple[int, ...] | list[int] = (56,)
    use_cls_token: bool = True
    num_register_tokens: int = 0
    register_positions: bool = False
    pooling: str = "cls"
    final_norm: str | None = "layer"
    init: str = "spectral"
    initializer_range: float = 0.02
    image_mean: tuple[float, ...] | list[float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] | list[float] = (0.5, 0.5, 0.5)

    choices: ClassVar[dict[str, Collection[str]]] = {
        **OdeConfig.choices,
        "tokenizer": TOKENIZERS,
        "pooling": POOLINGS,
        "init": ("spectral", "normal"),
    }
    rules: ClassVar[dict[str, Expected]] = {
        **OdeConfig.rules,
        "hidden_size": integer(2, WIDEST),  # the norm of one channel is constant
        "num_attention_heads": integer(1, WIDEST),
        **dict.fromkeys(("image_size", "patch_size"), integer(1, FINEST)),
        "num_channels": integer(1, 1024),
        "num_register_tokens": integer(0, FINEST),
        "horizon": real(above=0, maximum=MAX_TIME),
        "embedding_dropout": PROBABILITY,
        "initializer_range": real(above=0, maximum=1000),
        **dict.fromkeys(("use_cls_token", "register_positions"), BOOLEAN),
        "tokenizer_channels": list_of(integer(1, WIDEST)),
        "image_mean": list_of(real()),
        "image_std": list_of(real(above=0)),
    }

    def __post_init__(self, **kwargs: Any) -> None:
        features, indices = kwargs.pop("out_features", None), kwargs.pop("out_indices", None)
        super().__post_init__(**kwargs)
        if features is not None or indices is not None:
            self.set_output_features_output_indices(features, indices)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> OdeViTConfig:
        """A named configuration, see `odevit.hf.presets`; keyword arguments replace parts of it."""
        return cls(**{**HOOKS["preset"](name), **overrides})

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **kwargs: Any) -> Any:
        """Read a config.json; one of another architecture is refused instead of half understood."""
        given = config_dict.get("model_type", cls.model_type)
        if given != cls.model_type:
            raise ValueError(
                f"the checkpoint is of the architecture {given!r}, expected {cls.model_type!r}; "
                f"load it with transformers' AutoModel"
            )
        return super().from_dict(dict(config_dict), **kwargs)

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.final_norm is not None and (problem := NORMS.problem(self.final_norm)):
            problems.append(f"final_norm: {problem}")
        if problems:
            return problems  # what follows computes with these values

        problems = self.head_problems()
        if self.vector_blend is not None and self.vector_knots is None:
            problems.append(f"vector_blend={self.vector_blend!r}, but vector_knots=None: pass vector_knots=12, say")
        tokenizer = TOKENIZERS[self.tokenizer]
        stride = tokenizer.stride_of(self.patch_size, self.tokenizer_channels)
        if self.image_size % stride:
            problems.append(
                f"image_size={self.image_size} is not a multiple of the {stride} pixels of a token; "
                f"change {tokenizer.setting}"
            )
        if POOLINGS[self.pooling].needs_cls and not self.use_cls_token:
            free = " or ".join(repr(name) for name, kind in POOLINGS.items() if not kind.needs_cls)
            problems.append(f"pooling={self.pooling!r} needs use_cls_token=True; or choose pooling={free}")
        if self.register_positions and not self.num_register_tokens:
            problems.append("register_positions=True, but num_register_tokens=0; set one of the two")
        channels = Expected(f"{self.num_channels} numbers, one per channel", lambda v: len(v) == self.num_channels)
        return problems + validate(self, {"image_mean": channels, "image_std": channels})

    @property
    def stage_names(self) -> list[str]:
        """What can be asked of a backbone; a depth that keeps no states has two stages."""
        kind = DEPTHS[self.depth]
        stages = self.steps if kind.has_trajectory or kind.keeps_states else 1
        return ["stem", *(f"stage{number}" for number in range(1, stages + 1))]

    @property
    def stage_times(self) -> list[float]:
        """The times of the stages, or the numbers of the layers of a depth without an equation."""
        if DEPTHS[self.depth].has_trajectory:
            return self.solver_config.edges
        return [float(number) for number in range(len(self.stage_names))]

    def stages_at(self, times: Iterable[float]) -> list[str]:
        """The names of the stages x(t): `out_features=config.stages_at([2, 4, 6])`."""
        known, wanted = dict(zip(self.stage_times, self.stage_names, strict=True)), list(times)
        nearest = [min(known, key=lambda stage, t=t: abs(stage - t)) for t in wanted]  # type: ignore[misc]
        if missing := [t for t, stage in zip(wanted, nearest, strict=True) if abs(stage - t) > 1e-6 * max(known)]:
            raise ValueError(
                f"no stage stands at t = {', '.join(f'{t:g}' for t in missing)}; expected some of "
                f"{', '.join(f'{stage:.4g}' for stage in known)}, or take other steps"
            )
        return [known[stage] for stage in nearest]

    # What is not chosen stays open, so that x(T) is the last stage of however many steps there are.

    def set_output_features_output_indices(self, out_features: list[str] | None, out_indices: Any) -> None:
        self._out_features, self._out_indices = out_features, None if out_indices is None else list(out_indices)
        self.verify_out_features_out_indices()

    @property
    def _out_indices(self) -> list[int]:
        names, chosen = self.stage_names, self.__dict__.get("_stages", {})
        if chosen.get("out_indices") is not None:
            return list(chosen["out_indices"])
        return [names.index(name) for name in chosen.get("out_features") or names[-1:]]

    @_out_indices.setter
    def _out_indices(self, indices: list[int] | None) -> None:
        self.__dict__.setdefault("_stages", {})["out_indices"] = indices

    @property
    def _out_features(self) -> list[str]:
        names, chosen = self.stage_names, self.__dict__.get("_stages", {})
        if chosen.get("out_features") is not None:
            return list(chosen["out_features"])
        given = chosen.get("out_indices")
        return names[-1:] if given is None else [names[index] for index in given if -len(names) <= index < len(names)]

    @_out_features.setter
    def _out_features(self, features: list[str] | None) -> None:
        self.__dict__.setdefault("_stages", {})["out_features"] = features

    def to_dict(self) -> dict[str, Any]:
        values = OdeConfig.to_dict(self)  # the mixin would write names of its own
        return values | {name: given for name, given in values.pop("_stages", {}).items() if given is not None}
