"""image -> embed -> x(0) -> depth -> x(T) -> readout -> logits: what every command needs of a model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from odevit.core.base import HOOKS, Depth, Field, Request
from odevit.core.solution import Solution
from odevit.core.solver_config import SolverConfig
from odevit.tokens import Logits, Pixels, TokenLayout, Tokens


class ImageModel(nn.Module):
    """What `predict`, `eval`, `analyze`, `explore`, `export` and the explorer need of a model.

    A call gives the answer, `model(pixels).logits`; its parts are `readout(follow(embed(pixels)).state)`.
    """

    config: Any
    depth: Depth

    @abstractmethod
    def embed(self, pixels: Pixels) -> Tokens:
        """x(0), the embedded image."""

    def follow(self, tokens: Tokens, solver_config: SolverConfig | None = None, **options: Any) -> Solution:
        """The trajectory that starts at x(0) = `tokens`; the options are those of `Request`."""
        request = Request(solver_config, **options)
        return self.depth.as_depth(request.depth)(tokens, request)

    @abstractmethod
    def readout(self, state: Tokens, layout: TokenLayout | None = None) -> Logits:
        """The logits of a state anywhere on a trajectory."""

    @abstractmethod
    def readout_weights(self, state: Tokens, layout: TokenLayout | None = None) -> tuple[torch.Tensor, str]:
        """How much each token of a state counts for the head [batch, token], and the name of that pooling."""

    @abstractmethod
    def layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        """Where the field's tokens are, for the model's own image size unless another is given."""

    def to_teacher_space(self, state: Tokens) -> Tokens:
        """A state in the width and with the tokens of a student's teacher."""
        return state

    @property
    def solver_config(self) -> SolverConfig:
        """How the model integrates unless a call says otherwise."""
        return self.depth.solver_config

    @property
    def field(self) -> Field:
        """f of dx/dt = f(x)."""
        if not self.depth.has_trajectory:
            raise ValueError(HOOKS["trajectory_problem"](self.depth))
        return self.depth.field

    @property
    def labels(self) -> dict[int, str]:
        return {int(number): str(name) for number, name in (self.config.id2label or {}).items()}

    @property
    def classes(self) -> list[str]:
        """The names of its classes, in the order of its logits."""
        return [self.labels.get(number, f"LABEL_{number}") for number in range(self.config.num_labels)]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images it takes."""
        size = self.config.image_size
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))

    @property
    def image_processor(self) -> Any:
        """The image processor that makes pixel_values."""
        return HOOKS["image_processor"](self.config)

    def pixels_of(self, picture: Any) -> Pixels:
        """A PIL image as a batch of one, on the device of the model."""
        return HOOKS["pixel_values"](self.image_processor, picture).to(next(self.parameters()).device)

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())
