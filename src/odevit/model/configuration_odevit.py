"""The one description of a model; saved as config.json with the version of the library."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from transformers import PreTrainedConfig

from odevit.errors import ConfigError
from odevit.version import __version__


class OdeViTConfig(PreTrainedConfig):
    """Everything that defines an ODE-ViT. The defaults are our own small model with an attractor.

    Args:
        hidden_size: D, the width of the tokens.
        num_attention_heads: H; divides `hidden_size`.
        mlp_ratio: hidden width of the MLP over D.
        attention: `dot`, `l2`, `cosine` or `hopfield`.
        norm: `center`, `layer` or `rms`, inside the field.
        leak: pull towards the embedded image; 0 is the paper's equation.
        bias: whether the field's projections have one.
        residual_scale: start value of a learned per-channel factor on each component, or None.
        time_conditioned: whether the field knows the time.
        attention_dropout, hidden_dropout, drop_path: probabilities, one mask per trajectory.
        embedding_dropout: probability of the dropout on the embedded image.
        depth: `ode`, `equilibrium` for its rest point, or `stacked` for an ordinary ViT with `steps` untied layers.
        solver: how the model is integrated unless told otherwise.
        steps: N, the number of steps; N means N.
        horizon: T, the length of the trajectory; a step is T/N long.
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
    """

    model_type = "odevit"
    keys_to_ignore_at_inference = ("trajectory", "stats", "hidden_states", "attentions")

    hidden_size: int = 256
    num_attention_heads: int = 4
    mlp_ratio: float = 1.0
    attention: str = "dot"
    norm: str = "layer"
    leak: float = 1.0
    bias: bool = False
    residual_scale: float | None = None
    time_conditioned: bool = False
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    drop_path: float = 0.0
    embedding_dropout: float = 0.0
    depth: str = "ode"
    solver: str = "lie_trotter"
    steps: int = 12
    horizon: float = 6.0
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
    odevit_version: str = __version__

    def __post_init__(self, **kwargs: Any) -> None:
        misspelt = [
            f"unknown key {key!r}. Did you mean {near[0]!r}?"
            for key in kwargs
            if (near := get_close_matches(key, self.own_fields(), n=1, cutoff=0.75))
        ]
        super().__post_init__(**kwargs)
        problems = misspelt + self.problems()
        if problems:
            raise ConfigError("OdeViTConfig", problems)

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names of what this class adds to Hugging Face's configuration, for users to set."""
        return [name for name in cls.__annotations__ if name != "odevit_version"]

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> OdeViTConfig:
        """A named configuration, see `PRESETS`; keyword arguments replace parts of it."""
        from odevit.model.presets import PRESETS

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

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, with the version of the library that writes it."""
        return {**super().to_dict(), "odevit_version": __version__}

    def problems(self) -> list[str]:
        """All that is wrong, as sentences."""
        from odevit.depth import DEPTHS
        from odevit.field import ATTENTIONS, NORMS
        from odevit.model.pooling import POOLINGS
        from odevit.model.tokenizer import TOKENIZERS
        from odevit.registry import Registry
        from odevit.solver import SOLVERS

        named: list[tuple[Registry[Any], object]] = [
            (ATTENTIONS, self.attention),
            (NORMS, self.norm),
            (DEPTHS, self.depth),
            (SOLVERS, self.solver),
            (TOKENIZERS, self.tokenizer),
            (POOLINGS, self.pooling),
        ]
        if self.final_norm is not None:
            named.append((NORMS, self.final_norm))
        found = [problem for registry, name in named if (problem := registry.problem(name))]
        if self.init not in ("spectral", "normal"):
            found.append(f"unknown init {self.init!r}; known: normal, spectral.")

        def check(name: str, fine: bool, wanted: str) -> None:
            if not fine:
                found.append(f"{name}={getattr(self, name)!r}; expected {wanted}")

        for name in ("hidden_size", "num_attention_heads", "steps", "image_size", "num_channels", "patch_size"):
            check(name, _whole(getattr(self, name)) and getattr(self, name) >= 1, "a whole number, at least 1")
        check("num_register_tokens", _whole(self.num_register_tokens) and self.num_register_tokens >= 0, "0 or more")
        for name in ("mlp_ratio", "horizon"):
            check(name, _number(getattr(self, name)) and getattr(self, name) > 0, "a number > 0")
        check("leak", _number(self.leak) and self.leak >= 0, "a number >= 0")
        for name in ("attention_dropout", "hidden_dropout", "drop_path", "embedding_dropout"):
            check(name, _number(getattr(self, name)) and 0 <= getattr(self, name) < 1, "a probability in [0, 1)")
        if found:
            return found  # what follows computes with these numbers

        if self.hidden_size % self.num_attention_heads:
            found.append(
                f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}; "
                f"choose one of {[n for n in range(1, 33) if self.hidden_size % n == 0]}"
            )
        if self.hidden_size < 2:
            found.append("hidden_size=1; expected at least 2, for a norm of one channel is no norm")
        stride = self.patch_size if self.tokenizer == "patch" else 2 ** (len(self.tokenizer_channels) + 1)
        if self.image_size % stride:
            found.append(
                f"image_size={self.image_size} is not a multiple of the {stride} pixels of a token; "
                + ("change patch_size" if self.tokenizer == "patch" else "change tokenizer_channels or image_size")
            )
        if self.pooling == "cls" and not self.use_cls_token:
            found.append("pooling='cls' needs use_cls_token=True; or choose pooling='mean' or 'attention'")
        if self.register_positions and not self.num_register_tokens:
            found.append("register_positions=True, but num_register_tokens=0; set one of the two")
        for name in ("image_mean", "image_std"):
            check(name, len(getattr(self, name)) == self.num_channels, f"{self.num_channels} numbers, one a channel")
        return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
