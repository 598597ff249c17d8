"""image -> h_0 -> block_1, ..., block_L -> head -> logits: a plain ViT with the interface of every model."""

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
    """logits = head(block_L(... block_1(h_0))): a classifier of transformers, without a trajectory.

    Args:
        model: the classifier.
        vit_spec: of the model.
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
        self, pixel_values: Pixels, *, return_dict: bool | None = None, on_failure: str | None = None, **options: Any
    ) -> OdeViTImageClassifierOutput | tuple[Any, ...]:
        """Its logits. The `stats` count the blocks; the trajectory has no states, and its final state is the logits."""
        self.depth.check(**options)
        logits = parse_output(self.model, self.model(pixel_values)).logits
        assert logits is not None  # __init__ has checked that it has a head
        stats = Stats(nfe=self.solver_config.steps, steps=self.solver_config.steps)
        output = OdeViTImageClassifierOutput(logits=logits)
        with_trajectory(output, Solution(logits, self.solver_config.horizon, stats))
        return output if return_dict is None or return_dict else output.to_tuple()

    def ask(self, pixels: Pixels, solver_config: SolverConfig | None = None, **options: Any) -> tuple[Logits, Solution]:
        """To be removed with `ImageModel.ask`."""
        output: Any = ViTWrapper.forward(self, pixels, solver_config=solver_config, **options)
        return output.logits, output.trajectory

    def embed(self, *_: Any, **__: Any) -> NoReturn:
        """Refused, as everything about a trajectory, with the error of `field`."""
        raise ValueError(f"not reached: {self.field}")

    follow = readout = readout_weights = layout = embed


class BlockStack(Depth):
    """h_l = block_l(h_{l-1}): the depth of a ViT of another library. Its blocks are counted, not integrated."""

    def __init__(self, count: int) -> None:
        super().__init__(NotImplemented, SolverConfig("lie_trotter", count, float(count)))

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        self.check(solver=solver, steps=steps, horizon=horizon)
        return None

    def check(self, **given: object) -> None:
        """Refuse options that only an equation has."""
        options = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        refuse("a ViT", (f"{name} was given, but {self.describe()} are no equation; leave it out" for name in options))

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        raise ValueError(f"{self.describe()} have no trajectory; call the model with pixel values")

    def describe(self) -> str:
        return f"{self.solver_config.steps} blocks"
