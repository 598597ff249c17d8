"""image -> h_0 -> block_1, ..., block_L -> head -> logits: a plain ViT, loaded, described, rebuilt, and wrapped.

Its description in config.json, class and arguments, is what a student's folder has in place of its blocks.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from pathlib import Path
from typing import Any, NoReturn

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor

from odevit.core import modeling_odevit
from odevit.core.base import DEFAULT, Depth, Request, Solver
from odevit.core.image_model import ImageModel
from odevit.core.modeling_odevit import OdeViTImageClassifierOutput, with_trajectory
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import SolverConfig
from odevit.errors import refuse, shortened
from odevit.hf.checks import loading_errors, refuse_nan
from odevit.hf.processor import PixelStatistics, statistics_of
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.vit_spec import VitSpec, parse_output
from odevit.tokens import Pixels, Tokens


def load_vit(source: str | Path) -> PreTrainedModel:
    """The model of a folder or hub id, of the class that its config.json names, in evaluation mode.

    Weights that the checkpoint lacks are an error, because they would be random numbers.
    """
    with loading_errors(source):
        config = AutoConfig.from_pretrained(source)
    names = list(config.architectures or ())
    kind = next((known for name in names if (known := _find_class(name)) is not None), None)
    if config.model_type == OdeStudentConfig.model_type:
        raise ValueError(
            f"{source} holds a distilled student, whose depth is an equation already; give the ViT that it was made "
            "from, or another one"
        )
    if kind is None:
        raise ValueError(
            f"{source} names the architectures {names}, none of which transformers or odevit knows; "
            "load the model yourself and pass it instead of its folder"
        )
    model, missing = _load(kind, source)
    if missing and all("pooler." in key for key in missing) and _accepts(kind, "add_pooling_layer"):
        # DINO's checkpoints have no pooler although their config allows one; it would have random weights.
        model, missing = _load(kind, source, add_pooling_layer=False)
    if missing:
        raise ValueError(
            f"the checkpoint {source} lacks {len(missing)} weights of {kind.__name__} ({shortened(missing)}); a "
            "teacher needs all of them"
        )
    return model.eval()


def _load(kind: type[PreTrainedModel], source: str | Path, **arguments: Any) -> tuple[PreTrainedModel, list[str]]:
    with loading_errors(source):
        loaded: Any = kind.from_pretrained(source, output_loading_info=True, **arguments)
    model, info = loaded
    refuse_nan(model, source)
    # The mask token is for pre-training; no image in a distillation is masked.
    return model, sorted(key for key in info["missing_keys"] if not key.endswith("mask_token"))


def describe(model: nn.Module) -> tuple[dict[str, Any], PreTrainedConfig | None]:
    """The arguments of `rebuild`: library, class and arguments, and the configuration of a model of transformers."""
    kind, library = type(model), type(model).__module__.partition(".")[0]
    name, config, arguments = kind.__name__, None, {}
    if isinstance(model, PreTrainedModel) and _find_class(name) is kind:
        config = copy.deepcopy(model.config)  # the student's would change its attention
        # The arguments of the class beside its configuration, as the model has them.
        masked = any(key.endswith("mask_token") for key, _ in model.named_parameters())
        given = {"add_pooling_layer": getattr(model, "pooler", None) is not None, "use_mask_token": masked}
        arguments = {key: value for key, value in given.items() if _accepts(kind, key)}
    elif library == "timm":
        cfg: Any = getattr(model, "pretrained_cfg", None) or {}
        name = cfg.get("architecture", "") if isinstance(cfg, dict) else getattr(cfg, "architecture", "")
        values = {
            "num_classes": getattr(model, "num_classes", None),
            "global_pool": getattr(model, "global_pool", None),
            "img_size": getattr(getattr(model, "patch_embed", None), "img_size", None),
        }
        arguments = {key: value for key, value in values.items() if value is not None}
    return {"library": library, "class": str(name or ""), "arguments": arguments}, config


def rebuild(base: dict[str, Any], config: PreTrainedConfig | None) -> nn.Module:
    """A model of the class that `describe` returned, with random weights."""
    name, arguments = base["class"], base["arguments"]
    kind = _find_class(name)
    if kind is not None and config is not None:
        return kind(config, **arguments)
    if base["library"] == "timm" and name:
        try:
            return importlib.import_module("timm").create_model(name, **arguments)
        except ImportError as error:
            raise ImportError(f"the folder holds a student of timm's {name}; pip install timm") from error
    raise ValueError(
        f"the folder holds a student of {base['library']}'s {name}, which cannot be built from its name alone; "
        "pass OdeStudent.from_pretrained(folder, original=model)"
    )


def copy_original(original: nn.Module, expected: str, folder: Path) -> nn.Module:
    """A copy of the model whose blocks a student replaced, for its weights in a folder; another class is refused."""
    given = describe(original)[0]["class"]
    if given != expected:
        raise ValueError(
            f"the weights in {folder} do not fit {given}: they are of a student of {expected}; pass original=, the "
            "model whose blocks were replaced"
        )
    model = copy.deepcopy(original).eval()
    for module in model.modules():
        # Hugging Face empties buffers that are not saved, and fills only those of modules without this mark.
        module.__dict__.pop("_is_hf_initialized", None)
    return model


def _find_class(name: str) -> type[PreTrainedModel] | None:
    known = getattr(modeling_odevit, name, None) or getattr(transformers, name, None)
    return known if isinstance(known, type) and issubclass(known, PreTrainedModel) else None


def _accepts(kind: type, argument: str) -> bool:
    return argument in inspect.signature(kind).parameters


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
