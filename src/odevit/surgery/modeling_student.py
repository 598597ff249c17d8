"""image -> embed -> x(0) -> equation -> x(T) -> norm, head -> logits: a ViT with an equation in place of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import ModelOutput

from odevit.core.base import Depth, Solver
from odevit.core.field import VectorField
from odevit.core.image_model import ImageModel
from odevit.core.modeling_odevit import OdeViTImageClassifierOutput, with_trajectory
from odevit.core.pretrained_model import OdePreTrainedModel
from odevit.core.solution import SaveAt, Solution, check_solution
from odevit.core.solver_config import SolverConfig
from odevit.deprecated import STUDENT, renamed_arguments, renamed_in_student
from odevit.hf.checks import checked_from_pretrained
from odevit.hf.processor import find_processor
from odevit.solvers.early_exit import Stop
from odevit.solvers.penalties import Penalty
from odevit.surgery.block_locator import readout_weights_of
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.encoder import (
    BlockBridge,
    DepthBridge,
    OdeEncoder,
    Unregistered,
    constant_solution,
    override_blocks,
)
from odevit.surgery.plain_vit import copy_original, rebuild
from odevit.surgery.vit_spec import VitSpec, parse_output, zero_image
from odevit.surgery.weight_init import truncation_report
from odevit.time_varying.hyper import HyperField
from odevit.time_varying.knots import KnottedField
from odevit.tokens import Logits, Pixels, TokenLayout, Tokens, with_registers

MASKS = ("attention_mask", "attn_mask", "head_mask", "is_causal")


class OdeStudent(OdePreTrainedModel, ImageModel):
    """image -> embed -> x(0) -> dx/dt = f(x) -> x(T) -> norm, head -> logits.

    A copy of a ViT in which one equation replaces the list of blocks. Only the equation is trained: everything else is
    the original's, frozen, and stays in evaluation mode. Made by `get_ode_model`, saved and loaded like every model.

    States are in the field's tokens. Those of the teacher differ when the student has another width or registers;
    `teacher_embed`, `to_teacher_space`, `teacher_layout` and `teacher_readout` are about them, for distillation.

    Args:
        config: complete, as `get_ode_model` makes it and config.json has it.
        model: the copy to put the equation into; without it, one is built with random weights.
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
        has_positions = config.positions or config.rope_theta
        layout = self.vit_spec.layout(model) if has_positions else None
        self.encoder = OdeEncoder(config, self.vit_spec.width, layout)
        # A Sequential can be iterated over and called, so it replaces both kinds of lists.
        blocks = nn.Sequential(BlockBridge(self.encoder, self.vit_spec.as_tuple))
        self.vit_spec.locator.install(model, DepthBridge(self.encoder) if self.vit_spec.own else blocks)
        self.processor: BaseImageProcessor | None = None
        self._original = Unregistered(None)
        self.fuse_attention()
        self.post_init()

    def init_weights(self) -> None:
        """Nothing: the frozen parts have the teacher's weights, and `get_ode_model` initialises the equation."""

    def _init_weights(self, module: nn.Module) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return renamed_in_student(self, name) if name in STUDENT else super().__getattr__(name)

    # In the field's tokens, as for every model.

    @property
    def depth(self) -> Depth:  # type: ignore[override]
        return self.encoder.depth

    @property
    def field(self) -> VectorField | KnottedField:
        return self.encoder.field

    def embed(self, pixels: Pixels) -> Tokens:
        return self.encoder.encode_tokens(self.teacher_embed(pixels))

    def readout(self, state: Tokens, layout: TokenLayout | None = None) -> Logits:
        return self._logits(self.to_teacher_space(state), self._image_size(layout), {})

    def readout_weights(self, state: Tokens, layout: TokenLayout | None = None) -> tuple[Tensor, str]:
        teacher_layout = self.teacher_layout(*(self._image_size(layout) or self.vit_spec.size))
        weights, query = readout_weights_of(self.model, self.to_teacher_space(state), teacher_layout)
        return F.pad(weights, (0, state.shape[1] - weights.shape[1])), query

    def layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        return with_registers(self.teacher_layout(height, width), self.config.registers)

    @property
    def image_processor(self) -> BaseImageProcessor:
        """The teacher's; for a teacher of ours, the one that the configuration describes."""
        return super().image_processor if self.processor is None or self.vit_spec.own else self.processor

    # In the teacher's tokens.

    def to_teacher_space(self, state: Tokens) -> Tokens:
        return self.encoder.decode_tokens(state)

    def teacher_embed(self, pixels: Pixels, **kwargs: Any) -> Tokens:
        """h_0, the input of the original's first block; `kwargs` are for the embedding."""
        received: list[Tokens] = []

        def receive(tokens: Tokens) -> Solution:
            received.append(tokens)
            return constant_solution(tokens)

        self._run(receive, pixels, kwargs)
        return received[0]

    def teacher_layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        """Where the teacher's CLS, patches and registers are."""
        size = self.vit_spec.size
        return self.vit_spec.layout(self.model, (height or size[0], width or size[1]))

    def teacher_readout(self, state: Tokens, *, size: tuple[int, int] | None = None, **kwargs: Any) -> Any:
        """The original's output for a state after its blocks: norm, pooling, head. With gradient.

        Args:
            state: in the teacher's tokens, from anywhere on a trajectory.
            size: of its images, unless it is the model's own.
            kwargs: other arguments of the original's `forward`.
        """
        if state.ndim != 3 or state.shape[-1] != self.vit_spec.width:
            raise ValueError(
                f"the state has the shape {tuple(state.shape)}; expected [batch, token, {self.vit_spec.width}], "
                "the teacher's width, as to_teacher_space(state) gives it"
            )
        # The output of the blocks is given, so the image before them does not matter.
        pixels = zero_image(self.model, self.vit_spec.channels, size or self.vit_spec.size)
        return self._run(lambda _: constant_solution(state.to(self.dtype)), pixels, kwargs)

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
        """The original model's output for images, with `trajectory` and `stats` as attributes.

        The arguments are those of `OdeViTModel`. The trajectory is in the field's tokens, hidden states are in the
        teacher's, and `layout` names the tokens of attention maps. `kwargs` are other arguments of the original's
        `forward`, except masks.
        """
        if labels is not None:  # it is in the signature because the Trainer drops what is not
            kwargs["labels"] = labels
        if "way" in kwargs:
            solver_config = renamed_arguments({"way": kwargs.pop("way")})["solver_config"]
        base_config = getattr(self.model, "config", None)
        wanted = {
            name: bool(getattr(base_config, f"output_{name}", False) if given is None else given)
            for name, given in (("hidden_states", output_hidden_states), ("attentions", output_attentions))
        }
        if solver_config is None:
            solver_config = self.depth.as_depth(depth).resolve(solver, steps, horizon)
        size = (pixel_values.shape[-2], pixel_values.shape[-1])
        options: dict[str, Any] = {"depth": depth, "penalties": penalties, "stop": stop}
        options["save"] = SaveAt.parse(save).also(states=wanted["hidden_states"], attentions=wanted["attentions"])
        if stop is not None:
            options["readout"] = lambda state: self._logits(self.to_teacher_space(state), size, kwargs)
        solutions: list[Solution] = []

        def integrate(tokens: Tokens) -> Solution:
            solution = self.follow(self.encoder.encode_tokens(tokens), solver_config, **options)
            solutions.extend((solution, self.encoder.decode_solution(solution, tokens.dtype)))
            return solutions[-1]

        return_dict = kwargs.pop("return_dict", None) if self.config.base_config is None else None
        output = self._run(integrate, pixel_values, kwargs)
        if return_dict and isinstance(output, Tensor):  # timm's models return a tensor
            output = OdeViTImageClassifierOutput(logits=parse_output(self.model, output).logits)
        solution, in_teacher_space = solutions
        check_solution(solution, pixel_values, on_failure or self.config.on_failure, self.training)
        values = {"hidden_states": in_teacher_space.states, "attentions": solution.attentions}
        entries = {name: value for name, value in values.items() if wanted[name]}
        return _with_trajectory(output, solution, entries, self.training)

    def train(self, mode: bool = True) -> OdeStudent:
        """Set the equation to training; the frozen parts stay in evaluation, as in the teacher."""
        super().train(False)
        self.training = mode
        self.encoder.train(mode)
        return self

    def own_processor(self) -> BaseImageProcessor | None:
        return self.image_processor if self.processor is not None or self.config.image_mean else None

    def get_input_embeddings(self) -> nn.Module:
        """The module of the original that makes tokens of pixels."""
        getter = getattr(self.model, "get_input_embeddings", None)  # timm's models do not have it
        return self.model.patch_embed if getter is None else getter()

    def set_input_embeddings(self, value: nn.Module) -> None:
        setter = getattr(self.model, "set_input_embeddings", None)
        setattr(self.model, "patch_embed", value) if setter is None else setter(value)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, original: nn.Module | None = None, **kwargs: Any
    ) -> Any:
        """Load a student, in evaluation mode.

        `original` is the model whose blocks were replaced. `unload` returns it, and a model that cannot be built from
        the folder alone (one that is neither transformers', timm's nor ours) is built from it.
        """
        folder = Path(str(pretrained_model_name_or_path))
        files = {"config.json": "config*", "model.safetensors": "model*"}
        lacking = [name for name, pattern in files.items() if folder.is_dir() and not any(folder.glob(pattern))]
        if lacking:
            raise ValueError(
                f"{folder} has no {' and no '.join(lacking)}; expected a folder that OdeStudent.save_pretrained wrote"
            )
        if original is not None:
            config: Any = kwargs.get("config") or OdeStudentConfig.from_pretrained(folder)
            kwargs["config"], kwargs["model"] = config, copy_original(original, config.base["class"], folder)
        wants_info, labels = kwargs.pop("output_loading_info", False), kwargs.get("num_labels")
        student, info = checked_from_pretrained(
            super().from_pretrained,
            pretrained_model_name_or_path,
            *args,
            strict=True,
            remedy="Pass original=, the model whose blocks were replaced",
            output_loading_info=True,
            **kwargs,
        )
        has = getattr(getattr(student.model, "config", None), "num_labels", labels)
        if labels not in (None, has):
            raise ValueError(
                f"num_labels={labels} was given, but the head of a student is its teacher's, with {has}; distil a "
                "teacher that has these classes"
            )
        student.model.requires_grad_(False)
        student.set_original(original, find_processor(folder, student.model))
        return (student, info) if wants_info else student

    # The original.

    def set_original(self, original: nn.Module | None, processor: BaseImageProcessor | None) -> None:
        """Set the model that `unload` returns, and the image processor of that model."""
        self._original, self.processor = Unregistered(original), processor

    def unload(self) -> nn.Module:
        """The model whose blocks were replaced, unchanged."""
        if self._original.model is None:
            raise ValueError(
                "this student was loaded from a folder, which holds no original blocks; "
                "pass OdeStudent.from_pretrained(folder, original=model) to be able to unload"
            )
        return self._original.model

    def summary(self) -> str:
        """How many parameters are trained, how many there are, and how many the original has.

        For a field with knots whose original is known: also the distance of each knot from the blocks it replaces.
        """
        total, original = self.parameter_count, self.config.original_parameters
        trainable = sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
        line = (
            f"trainable parameters: {trainable:,} of {total:,} ({100 * trainable / total:.1f}%); "
            f"the original has {original:,} ({original / total:.1f} times as many)"
        )
        field, vit = self.field, self._original.model
        if not isinstance(field, KnottedField) or isinstance(field, HyperField):
            return line
        if vit is None or self.config.init != "average":
            return line
        return line + "\n" + truncation_report(field, self.vit_spec.locator.blocks(vit), self.config)

    def print_summary(self) -> None:
        print(self.summary())

    def _run(self, override: Callable[[Tokens], Solution], pixels: Pixels, kwargs: dict[str, Any]) -> Any:
        """The original's output, with `override` in place of the equation."""
        masks = [name for name in MASKS if kwargs.get(name) is not None and kwargs[name] is not False]
        if masks:
            raise ValueError(f"{', '.join(masks)} was given, but a field looks at every token; leave it out")
        if self.vit_spec.own:
            kwargs = {**kwargs, "on_failure": "ignore"}  # the student checks the solution
        with override_blocks(self.encoder, override):
            # The frozen parts may be in half precision, and not every ViT casts its input.
            return self.model(pixels.to(self.dtype) if pixels.is_floating_point() else pixels, **kwargs)

    def _logits(self, state: Tokens, size: tuple[int, int] | None, kwargs: dict[str, Any]) -> Logits:
        """The logits of a state in the teacher's tokens."""
        logits = parse_output(self.model, self.teacher_readout(state, size=size, **kwargs)).logits
        if logits is None:
            raise ValueError(
                f"a {type(self.model).__name__} has no head to ask; use stop='velocity', or distil a model "
                "...ForImageClassification"
            )
        return logits

    def _image_size(self, layout: TokenLayout | None) -> tuple[int, int] | None:
        """The size of the images that a layout is of; None for the model's own."""
        if layout is None or (grid := self.teacher_layout().grid) == layout.grid:
            return None
        height, width = (
            size // patches * count for size, patches, count in zip(self.vit_spec.size, grid, layout.grid, strict=True)
        )
        return height, width


def _with_trajectory(output: Any, solution: Solution, entries: dict[str, Any], training: bool) -> Any:
    """A model's output with further entries, and the trajectory; in training, with what the depth adds to the loss."""
    is_output = isinstance(output, ModelOutput) and is_dataclass(output)
    known = {entry.name for entry in fields(output)} if is_output else set()
    if unknown := [name for name in entries if name not in known]:
        raise ValueError(
            f"{' and '.join(unknown)} were asked for, but an output of the type {type(output).__name__} has no place "
            "for them; pass return_dict=True and save='all', and use output.trajectory"
        )
    for name, value in entries.items():
        output[name] = value
    if training and is_output and getattr(output, "loss", None) is not None:
        output.loss = output.loss + sum(solution.costs.values())
    return with_trajectory(output, solution) if is_output else output
