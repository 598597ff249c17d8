"""weights, config.json, preprocessor_config.json: what every model of this library is to transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from odevit.core.attention import Attention
from odevit.core.base import HOOKS, Field


class OdePreTrainedModel(PreTrainedModel):
    """A `PreTrainedModel` with an equation in it: made from scratch, or a student of a ViT."""

    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    # The loss is a mean over the batch as it came; the Trainer must not divide it again.
    accepts_loss_kwargs = False
    _supports_sdpa = True
    # The modules that are called: a field as a whole never is, since solvers take its components one by one.
    _no_split_modules = ["Branch"]  # noqa: RUF012 (Hugging Face expects a list)

    def own_processor(self) -> Any:
        """The image processor that is saved with the model; None if it is not known."""
        raise NotImplementedError

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Write weights, config.json and preprocessor_config.json, so that the folder is complete in itself.

        Another image processor that is already in the folder stays.
        """
        if is_main_process and (processor := self.own_processor()) is not None:
            HOOKS["save_processor"](processor, save_directory)  # first, so that it is there when the folder is uploaded
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    def _get_files_timestamps(self, working_dir: str | os.PathLike[str]) -> dict[str, float]:
        """Which files an upload may leave out as old; the processor has just been written."""
        old: dict[str, float] = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in old.items() if name != "preprocessor_config.json"}

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        super().set_attn_implementation(*args, **kwargs)
        self.fuse_attention()

    def fuse_attention(self) -> None:
        """Set attention to what the configuration says: "eager" is the plain form, everything else is fused."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.fused = self.config._attn_implementation != "eager"
            elif isinstance(module, Field):
                module.clear_cache()

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """Compute steps again in the backward pass, with the options given to gradient_checkpointing_enable."""
        function = HOOKS["checkpoint_function"](gradient_checkpointing_func)
        super()._set_gradient_checkpointing(enable, function, every_n_layers)
