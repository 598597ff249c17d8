"""The one description of an image classifier, saved as config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers.backbone_utils import BackboneConfigMixin

from odevit.core.base import DEPTHS, HOOKS
from odevit.core.configuration import OdeConfig


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

    @property
    def stage_names(self) -> list[str]:
        """What can be asked of a backbone; a depth that keeps no states has two stages."""
        kind = DEPTHS[self.depth]
        stages = self.steps if kind.has_trajectory or kind.keeps_states else 1
        return ["stem", *(f"stage{number}" for number in range(1, stages + 1))]

    def stages_at(self, times: Iterable[float]) -> list[str]:
        """The names of the stages x(t): `out_features=config.stages_at([2, 4, 6])`."""
        return HOOKS["stages_at"](self, times)

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
