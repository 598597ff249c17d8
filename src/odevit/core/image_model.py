"""image -> embed -> x(0) -> depth -> x(T) -> readout -> logits: a model one can ask."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers.image_processing_utils import BaseImageProcessor

from odevit.core.depth import Depth
from odevit.core.dynamics import Field
from odevit.core.solution import SaveAt, Solution
from odevit.core.solver_config import SolverConfig
from odevit.errors import shortened
from odevit.hf.processor import make_image_processor, pixel_values
from odevit.solvers.early_exit import Stop
from odevit.tokens import Logits, Pixels, TokenLayout, Tokens


class ImageModel(nn.Module):
    """What `predict`, `eval`, `analyze`, `explore`, `export` and the explorer know of any model.

    A model made from scratch, a stacked one and a distilled student answer to the same names. States are those of the
    field itself: a student that is narrower than its teacher speaks of its own width, and `outside` translates.
    """

    config: Any
    depth: Depth

    @abstractmethod
    def embed(self, pixels: Pixels) -> Tokens:
        """x(0), where the trajectory of an image begins."""

    @abstractmethod
    def readout(self, state: Tokens, layout: TokenLayout | None = None) -> Logits:
        """What the head says of a state anywhere on a trajectory."""

    @abstractmethod
    def readout_weights(self, state: Tokens, layout: TokenLayout | None = None) -> tuple[torch.Tensor, str]:
        """How much each token counts in what the head reads of a state [batch, token], and who that is, in words."""

    @abstractmethod
    def layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        """Where the field's tokens stand; for the model's own image size unless another is given."""

    def to_teacher_space(self, state: Tokens) -> Tokens:
        """A state as a teacher would have it."""
        return state

    @property
    def solver_config(self) -> SolverConfig:
        """How the model integrates on its own."""
        return self.depth.solver_config

    @property
    def field(self) -> Field:
        """f of dx/dt = f(x)."""
        if not self.depth.has_trajectory:
            own = shortened(self.depth.own_weights) if self.depth.shares_field else ""
            if self.depth.shares_field and not own:
                raise ValueError(
                    f"this model is {self.depth.describe()}: it follows no trajectory itself. Its weights are those of "
                    "an equation, which can be followed: odevit.load(folder, depth='ode'), or depth=ode with odevit "
                    "eval and odevit analyze"
                )
            because = f": it has weights beside those of its block ({own})" if own else ""
            raise ValueError(
                f"this model is {self.depth.describe()}: it has no trajectory to follow, since it obeys no single "
                f"equation{because}; expected one with depth='ode'. odevit distill turns a stack into one"
            )
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
    def image_processor(self) -> BaseImageProcessor:
        """What turns a picture into pixel_values."""
        return make_image_processor(self.config)

    def pixels_of(self, picture: Image.Image) -> Pixels:
        """A picture as a batch of one, in the colours and on the device of the model."""
        return pixel_values(self.image_processor, picture).to(next(self.parameters()).device)

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def ask(
        self,
        pixels: Pixels,
        solver_config: SolverConfig | None = None,
        *,
        save: SaveAt | str | Iterable[int] | None = None,
        stop: str | Stop | None = None,
        depth: str | None = None,
    ) -> tuple[Logits, Solution]:
        """What the model says of images, and the trajectory that led there; the arguments are those of a call."""
        layout = self.layout(*pixels.shape[-2:])
        solution = self.depth.as_depth(depth)(
            self.embed(pixels), solver_config, save=save, stop=stop, read=lambda state: self.readout(state, layout)
        )
        return self.readout(solution.state, layout), solution
