"""image -> h_0 -> block_1, ..., block_L -> head -> logits: a ViT that was not operated on, asked as any model is."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

from transformers import PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor

from odevit.core.base import DEFAULT, Depth, Request, Solver, refuse
from odevit.core.image_model import ImageModel
from odevit.core.output import OdeViTImageClassifierOutput, with_trajectory
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import SolverConfig
from odevit.hf.processor import PixelStatistics, statistics_of
from odevit.surgery.vit_spec import VitSpec, parse_output
from odevit.tokens import Logits, Pixels, Tokens


class ViTWrapper(ImageModel):
    """logits = head(block_L(... block_1(h_0))): what it answers and what that costs; it has no trajectory.

    Args:
        model: a classifier of transformers.
        anatomy: of the model.
        processor: its image processor, if it has one.
        statistics: of the pixels it is trained with, if it has none.
    """

    depth: BlockStack

    def __init__(
        self,
        model: PreTrainedModel,
        vit_spec: VitSpec,
        processor: BaseImageProcessor | None,
        statistics: PixelStatistics | None = None,
    ) -> None:
        super().__init__()
        if vit_spec.labels is None:
            raise ValueError(
                f"this is a {type(model).__name__} without a classification head; give it one for your data first: "
                "odevit train teacher=FOLDER head_only=true data=DATA"
            )
        self.model, self.processor = model, processor
        statistics = statistics if processor is None else statistics_of(processor)
        self.depth = BlockStack(vit_spec.blocks)
        self.config = copy.deepcopy(model.config)
        pixels = {} if statistics is None else {"image_mean": list(statistics.mean), "image_std": list(statistics.std)}
        for name, value in {"image_mean": None, "image_std": None, **pixels}.items():
            setattr(self.config, name, value)
        self.config.image_size, self.config.num_channels = vit_spec.size, vit_spec.channels

    @property
    def image_processor(self) -> BaseImageProcessor:
        return self.processor or super().image_processor

    def forward(
        self,
        pixel_values: Pixels,
        solver_config: SolverConfig | None = None,
        return_dict: bool = False,
        on_failure: str | None = None,
        **options: Any,
    ) -> Logits | OdeViTImageClassifierOutput:
        """Its logits; with `return_dict`, an output whose `stats` count the blocks. It has no solver to set."""
        logits, solution = self.ask(pixel_values, solver_config, **options)
        return with_trajectory(OdeViTImageClassifierOutput(logits=logits), solution) if return_dict else logits

    def ask(self, pixels: Pixels, solver_config: SolverConfig | None = None, **options: Any) -> tuple[Logits, Solution]:
        """Its logits. Nothing in between is watched: the answer itself stands for the last state."""
        self.depth.check(solver_config=solver_config, **options)
        logits = parse_output(self.model, self.model(pixels)).logits
        assert logits is not None  # it has a head
        return logits, Solution(
            logits, self.solver_config.horizon, Stats(nfe=self.solver_config.steps, steps=self.solver_config.steps)
        )

    def embed(self, *_: Any, **__: Any) -> NoReturn:
        """Whatever a trajectory would be asked is refused, in the words of `field`."""
        raise ValueError(f"not reached: {self.field}")

    readout = readout_weights = layout = embed


class BlockStack(Depth):
    """h_l = block_l(h_{l-1}): the depth of somebody else's ViT, which can be counted, but not integrated."""

    def __init__(self, count: int) -> None:
        super().__init__(NotImplemented, SolverConfig("lie_trotter", count, float(count)))

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        self.check(solver=solver, steps=steps, horizon=horizon)
        return None

    def check(self, **given: object) -> None:
        """Refuse whatever is asked of an equation."""
        asked = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        refuse("a ViT", [f"{words} was given, but {self.describe()} are no equation; leave it out" for words in asked])

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        raise ValueError(f"{self.describe()} are asked for logits, not for states; call ask(pixels)")

    def describe(self) -> str:
        return f"{self.solver_config.steps} blocks"
