"""The one description of a model; saved as config.json with the version of the library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from odevit.core.configuration_equation import FINEST, WIDEST, EquationConfig
from odevit.core.embedding import TOKENIZERS
from odevit.core.norm import NORMS
from odevit.core.pooling import POOLINGS
from odevit.core.stages import StagedConfig
from odevit.errors import BOOLEAN, MAX_TIME, PROBABILITY, Expected, integer, list_of, real, validate
from odevit.hf.presets import PRESETS


class OdeViTConfig(StagedConfig):
    """Everything that defines an ODE-ViT. The defaults are our own small model with an attractor.

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

    The arguments of the equation are those of `EquationConfig`; `out_features` and `out_indices` choose what a backbone
    gives, see `StagedConfig`.
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
        **EquationConfig.choices,
        "tokenizer": TOKENIZERS,
        "pooling": POOLINGS,
        "init": ("spectral", "normal"),
    }
    rules: ClassVar[dict[str, Expected]] = {
        **EquationConfig.rules,
        "hidden_size": integer(2, WIDEST),  # the norm of a single channel says nothing
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

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> OdeViTConfig:
        """A named configuration, see `PRESETS`; keyword arguments replace parts of it."""
        return cls(**{**PRESETS[name], **overrides})

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
            return problems  # what follows computes with these numbers

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
