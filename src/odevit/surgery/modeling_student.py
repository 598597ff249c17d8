"""image -> embed -> x(0) -> equation -> x(T) -> norm, head -> answer: a ViT whose blocks became an equation."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import ModelOutput

from odevit.core.base import Depth, Request, Solver
from odevit.core.field import VectorField
from odevit.core.image_model import ImageModel
from odevit.core.output import OdeViTImageClassifierOutput, with_trajectory
from odevit.core.pretrained_model import OdePreTrainedModel
from odevit.core.solution import SaveAt, Solution, Stats, check_solution
from odevit.core.solver_config import SolverConfig
from odevit.hf.checks import hold_load_report, loading_errors, refuse_nan
from odevit.hf.processor import find_processor
from odevit.solvers.early_exit import Stop
from odevit.solvers.penalties import Penalty
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.encoder import BlockBridge, BlockOverride, DepthBridge, OdeEncoder, override_blocks
from odevit.surgery.head import readout_weights_of
from odevit.surgery.serialization import describe, is_legacy_student, legacy_config, rebuild
from odevit.surgery.vit_spec import VitSpec, parse_output, zero_image
from odevit.surgery.weight_init import truncation_report
from odevit.time_varying.builder import other_knots
from odevit.time_varying.hyper import HyperField
from odevit.time_varying.knots import KnottedField
from odevit.tokens import Logits, Pixels, TokenLayout, Tokens, with_registers

MASKS = ("attention_mask", "attn_mask", "head_mask", "is_causal")


class OdeStudent(OdePreTrainedModel, ImageModel):
    """image -> embed -> x(0) -> dx/dt = f(x) -> x(T) -> norm, head -> answer.

    A copy of a ViT whose list of blocks is one equation. Only the equation is trained: everything else is the
    original's, frozen, and stays in evaluation mode. Made by `get_ode_model`, saved and loaded like every other model.

    `embed`, `readout` and `layout` speak of the field's own tokens; `tokens`, `output`, `states`, `follow` and
    `outer_layout` of the teacher's, which are wider or fewer when the student has another width or registers.

    Args:
        config: complete, as `get_ode_model` makes it and config.json has it.
        model: the copy to put the equation into; built anew, with random weights, when it is not at hand.
    """

    config_class = OdeStudentConfig
    config: OdeStudentConfig
    base_model_prefix = ""
    # The frozen parts may be in half precision; the equation is trained, and kept, in single precision.
    _keep_in_fp32_modules_strict = {"encoder"}  # noqa: RUF012 (Hugging Face expects a set)

    def __init__(self, config: OdeStudentConfig, model: nn.Module | None = None) -> None:
        super().__init__(config)
        if config.anatomy is None or config.base is None:
            raise ValueError("the configuration does not say whose blocks are replaced; use get_ode_model(vit)")
        if model is None:
            assert not isinstance(config.base_config, dict)  # the configuration has made a config of it
            model = rebuild(config.base, config.base_config)
        self.vit_spec = VitSpec(**{**config.anatomy, "size": tuple(config.anatomy["size"])})
        # First, so that the dtype of this module is that of the frozen parts.
        self.model = model.requires_grad_(False)
        placed = config.positions or config.rope_theta
        self.encoder = OdeEncoder(config, self.vit_spec.width, self.vit_spec.layout(model) if placed else None)
        own, as_tuple = self.vit_spec.own, self.vit_spec.as_tuple
        # A Sequential answers to a loop over its members as well as to a call, so it serves for both kinds of list.
        bridge = DepthBridge(self.encoder) if own else nn.Sequential(BlockBridge(self.encoder, as_tuple))
        self.vit_spec.locator.install(model, bridge)
        self.processor: BaseImageProcessor | None = None
        self._original = _Unregistered(None)
        self.fuse_attention()
        self.post_init()

    def init_weights(self) -> None:
        """Nothing: the frozen parts are somebody's weights, and surgery initialises the equation."""

    def _init_weights(self, module: nn.Module) -> None:
        return None

    # What a student is asked as any model is.

    @property
    def depth(self) -> Depth:  # type: ignore[override]
        return self.encoder.depth

    @property
    def field(self) -> VectorField | KnottedField:
        return self.encoder.field

    def embed(self, pixels: Pixels) -> Tokens:
        return self.encoder.encode_tokens(self.tokens(pixels))

    def readout(self, state: Tokens, layout: TokenLayout | None = None) -> Logits:
        return self._logits(self.to_teacher_space(state), self._size_of(layout), {})

    def to_teacher_space(self, state: Tokens) -> Tokens:
        return self.encoder.decode_tokens(state)

    def layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        return with_registers(self.teacher_layout(height, width), self.config.registers)

    def readout_weights(self, state: Tokens, layout: TokenLayout | None = None) -> tuple[Tensor, str]:
        outer = self.teacher_layout(*(self._size_of(layout) or self.vit_spec.size))
        weights, query = readout_weights_of(self.model, self.to_teacher_space(state), outer)
        return F.pad(weights, (0, state.shape[1] - weights.shape[1])), query

    @property
    def image_processor(self) -> BaseImageProcessor:
        """Its teacher's; a model of ours is described by the configuration alone."""
        return super().image_processor if self.processor is None or self.vit_spec.own else self.processor

    # What its teacher's side is asked.

    def tokens(self, pixels: Pixels, **kwargs: Any) -> Tokens:
        """h_0, what the first block would receive, in the teacher's width; `kwargs` are for the embedding."""
        received: list[Tokens] = []

        def receive(x0: Tokens) -> Solution:
            received.append(x0)
            return _standing_still(x0)

        self._run(receive, pixels, kwargs)
        return received[0]

    def output(self, state: Tokens, *, size: tuple[int, int] | None = None, **kwargs: Any) -> Any:
        """What the operated model makes of a state after its blocks: norm, pooling, head. With gradient.

        The state may come from anywhere on a trajectory, in the teacher's width; `size` is that of its images, when it
        is not the model's own; `kwargs` are whatever else the original's forward takes.
        """
        if state.ndim != 3 or state.shape[-1] != self.vit_spec.width:
            raise ValueError(
                f"the state has the shape {tuple(state.shape)}; expected [batch, token, {self.vit_spec.width}], "
                "the teacher's width, as states() and tokens() give it"
            )
        # The blocks' answer is given, so that the image before them does not matter: one of zeros will do.
        pixels = zero_image(self.model, self.vit_spec.channels, size or self.vit_spec.size)
        return self._run(lambda _: _standing_still(state), pixels, kwargs)

    def states(
        self,
        pixels: Pixels,
        *,
        solver_config: SolverConfig | None = None,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        save: SaveAt | str | Iterable[int] | None = "all",
        penalties: Mapping[str, Penalty] | None = None,
        **kwargs: Any,
    ) -> Solution:
        """The trajectory of images in the teacher's width; `kwargs` are for the embedding."""
        solver_config = self.depth.resolve(solver, steps, horizon) if solver_config is None else solver_config
        return self.follow_teacher_tokens(self.tokens(pixels, **kwargs), solver_config, save=save, penalties=penalties)

    def follow_teacher_tokens(
        self, tokens: Tokens, solver_config: SolverConfig | None = None, **options: Any
    ) -> Solution:
        """The trajectory in the teacher's width from h_0 on; `options` are those of a `Depth`."""
        return self.encoder(tokens, Request(solver_config, **options))

    def teacher_layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        """Where the teacher's CLS, patches and registers stand."""
        own = self.vit_spec.size
        return self.vit_spec.layout(self.model, (height or own[0], width or own[1]))

    # A model of transformers.

    def forward(
        self,
        pixel_values: Pixels,
        *,
        labels: Tensor | None = None,
        solver_config: SolverConfig | None = None,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        save: SaveAt | str | Iterable[int] | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        stop: str | Stop | None = None,
        depth: str | None = None,
        on_failure: str | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The operated model's own output for images, with `trajectory` and `stats` beside it.

        The arguments are those of `OdeViTModel`. Hidden states are in the teacher's width; in attention maps `layout`
        says which token is which. `labels` and `kwargs` are whatever else the original's forward takes, masks excepted.
        """
        if (
            labels is not None
        ):  # an argument of its own, because the Trainer looks for one and drops what it does not find
            kwargs["labels"] = labels
        base_config = getattr(self.model, "config", None)
        asked = {
            name: bool(getattr(base_config, f"output_{name}", False) if given is None else given)
            for name, given in (("hidden_states", output_hidden_states), ("attentions", output_attentions))
        }
        solver_config = (
            self.depth.as_depth(depth).resolve(solver, steps, horizon) if solver_config is None else solver_config
        )
        height, width = pixel_values.shape[-2:]
        read = None if stop is None else lambda state: self._logits(state, (height, width), kwargs)
        options: dict[str, Any] = {"depth": depth, "penalties": penalties, "stop": stop, "readout": read}
        options["save"] = SaveAt.parse(save).also(states=asked["hidden_states"], attentions=asked["attentions"])
        trajectories: list[Solution] = []

        def integrate(x0: Tokens) -> Solution:
            trajectories.append(self.encoder(x0, Request(solver_config, **options)))
            return trajectories[-1]

        wanted = kwargs.pop("return_dict", None) if self.config.base_config is None else kwargs.get("return_dict")
        output = self._run(integrate, pixel_values, kwargs)
        if wanted and isinstance(output, Tensor):  # timm's models answer with a tensor alone
            answer = parse_output(self.model, output)
            output = OdeViTImageClassifierOutput(logits=answer.logits)
        check_solution(trajectories[-1], pixel_values, on_failure or self.config.on_failure, self.training)
        return _completed(output, trajectories[-1], asked, self.training)

    def train(self, mode: bool = True) -> OdeStudent:
        """Set the equation to training; the frozen parts stay in evaluation, where the teacher's states come from."""
        super().train(False)
        self.training = mode
        self.encoder.train(mode)
        return self

    def own_processor(self) -> BaseImageProcessor | None:
        return self.image_processor if self.processor is not None or self.config.image_mean else None

    def get_input_embeddings(self) -> nn.Module:
        """What makes tokens of pixels in the model that was operated on."""
        own = getattr(self.model, "get_input_embeddings", None)  # transformers' and ours have it, timm's do not
        return self.model.patch_embed if own is None else own()

    def set_input_embeddings(self, value: nn.Module) -> None:
        own = getattr(self.model, "set_input_embeddings", None)
        setattr(self.model, "patch_embed", value) if own is None else own(value)

    @classmethod
    @hold_load_report()
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, original: nn.Module | None = None, **kwargs: Any
    ) -> Any:
        """Load a student, in this version's format or the first one's, in evaluation mode.

        `original` is the model that was operated on: `unload` gives it back, and a model that cannot be built from the
        folder alone (one that is neither transformers', timm's nor ours) is built from it.
        """
        folder = Path(str(pretrained_model_name_or_path))  # None, where weights are given instead, is no folder
        if is_legacy_student(folder):
            kwargs["config"] = kwargs.get("config") or legacy_config(folder, original)
        elif folder.is_dir():
            lacking = [name for name in ("config.json", "model.safetensors") if not list(folder.glob(f"{name[:5]}*"))]
            if lacking:
                raise ValueError(
                    f"{folder} has no {' and no '.join(lacking)}; expected a folder that OdeStudent.save_pretrained "
                    "wrote"
                )
        if original is not None:
            config: Any = kwargs.get("config") or OdeStudentConfig.from_pretrained(folder)
            given, expected = describe(original)[0]["class"], config.base["class"]
            if given != expected:
                raise ValueError(
                    f"the weights in {folder} do not fit {given}: they are of a student of {expected}; pass "
                    "original=, the model that was operated on"
                )
            kwargs["config"], kwargs["model"] = config, copy.deepcopy(original).eval()
            for module in kwargs["model"].modules():
                # Hugging Face empties buffers that are not saved, and fills only those of modules without this mark.
                module.__dict__.pop("_is_hf_initialized", None)
        wants_info, labels = kwargs.pop("output_loading_info", False), kwargs.get("num_labels")
        with loading_errors(folder):
            loaded: Any = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
        student, info = loaded
        if problem := other_knots([*info["missing_keys"], *info["unexpected_keys"]], student.config):
            raise ValueError(f"the weights in {folder} do not fit: {problem}")
        if info["missing_keys"] or info["unexpected_keys"]:
            raise ValueError(
                f"the weights in {folder} do not fit {type(student.model).__name__}: missing "
                f"{sorted(info['missing_keys'])[:5]}, of no use {sorted(info['unexpected_keys'])[:5]}; pass original=, "
                "the model that was operated on"
            )
        if labels is not None and labels != (
            own := getattr(getattr(student.model, "config", None), "num_labels", labels)
        ):
            raise ValueError(
                f"num_labels={labels} was given, but the head of a student is its teacher's, with {own}; distil a "
                "teacher that has these classes"
            )
        refuse_nan(student, folder)
        student.model.requires_grad_(False)
        student.set_original(original, find_processor(folder, student.model))
        return (student, info) if wants_info else student

    def set_original(self, original: nn.Module | None, processor: BaseImageProcessor | None) -> None:
        """Where it comes from: the model that was operated on, and the image processor of that model."""
        self._original, self.processor = _Unregistered(original), processor

    def unload(self) -> nn.Module:
        """The model that was operated on, as it was."""
        if self._original.model is None:
            raise ValueError(
                "this student was loaded from a folder, which holds no original blocks; "
                "pass OdeStudent.from_pretrained(folder, original=model) to be able to unload"
            )
        return self._original.model

    @property
    def original_parameters(self) -> int:
        return self.config.original_parameters

    def summary(self) -> str:
        """How many parameters are trained, how many there are, and how many the original has.

        For a field with knots, where the original's blocks are at hand: how far each knot is from those it stands for.
        """
        total, original = self.parameter_count, self.original_parameters
        trainable = sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
        line = (
            f"trainable parameters: {trainable:,} of {total:,} ({100 * trainable / total:.1f}%); "
            f"the original has {original:,} ({original / total:.1f} times as many)"
        )
        field = self.field
        if not isinstance(field, KnottedField) or isinstance(field, HyperField):
            return line
        if self._original.model is None or self.config.init != "average":
            return line
        return line + "\n" + truncation_report(field, self.vit_spec.locator.blocks(self._original.model), self.config)

    def print_summary(self) -> None:
        print(self.summary())

    def _run(self, crossing: BlockOverride, pixels: Pixels, kwargs: dict[str, Any]) -> Any:
        """The model's output with `crossing` in the place of the equation."""
        masks = [name for name in MASKS if kwargs.get(name) is not None and kwargs[name] is not False]
        if masks:
            raise ValueError(f"{', '.join(masks)} was given, but a field looks at every token; leave it out")
        if self.vit_spec.own:
            kwargs = {**kwargs, "on_failure": "ignore"}  # the student judges for both
        with override_blocks(self.encoder, crossing):
            # The frozen parts may be in half precision; not every ViT casts on its own.
            return self.model(pixels.to(self.dtype) if pixels.is_floating_point() else pixels, **kwargs)

    def _logits(self, state: Tokens, size: tuple[int, int] | None, kwargs: dict[str, Any]) -> Logits:
        logits = parse_output(self.model, self.output(state, size=size, **kwargs)).logits
        if logits is None:
            raise ValueError(
                f"a {type(self.model).__name__} has no head to ask; use stop='velocity', or distil a model "
                "...ForImageClassification"
            )
        return logits

    def _size_of(self, layout: TokenLayout | None) -> tuple[int, int] | None:
        """The size of the images that a layout is of; None for the model's own."""
        if layout is None or (own := self.teacher_layout().grid) == layout.grid:
            return None
        height, width = (
            size // patches * count for size, patches, count in zip(self.vit_spec.size, own, layout.grid, strict=True)
        )
        return height, width


class _Unregistered:
    """A model that is remembered but is no part: not trained, not moved, not saved, not copied along."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> _Unregistered:
        return self


def _standing_still(state: Tokens) -> Solution:
    """A trajectory that goes nowhere."""
    return Solution(state=state, time=0.0, stats=Stats(nfe=0, steps=0))


def _completed(output: Any, trajectory: Solution, asked: dict[str, bool], training: bool) -> Any:
    """A model's output with what was asked for, and the trajectory beside it; in training, with what depth costs."""
    values = {"hidden_states": trajectory.states, "attentions": trajectory.attentions}
    own = isinstance(output, ModelOutput) and is_dataclass(output)
    known = {entry.name for entry in fields(output)} if own else set()
    homeless = [name for name, wanted in asked.items() if wanted and name not in known]
    if homeless:
        raise ValueError(
            f"{' and '.join(homeless)} were asked for, but an output of the type {type(output).__name__} has no place "
            "for them; ask states(pixel_values, save=...), or leave return_dict out"
        )
    for name, wanted in asked.items():
        if wanted:
            output[name] = values[name]
    if training and own and getattr(output, "loss", None) is not None:
        output.loss = output.loss + sum(trajectory.costs.values())
    return with_trajectory(output, trajectory) if own else output
