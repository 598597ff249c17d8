"""image -> embed -> x(0) -> equation -> x(T) -> norm, head -> answer: a ViT whose blocks became an equation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import ModelOutput

from odevit.depth import Integration
from odevit.depth.base import AS_CONFIGURED
from odevit.distill.anatomy import Anatomy, answer_of, blank
from odevit.distill.configuration import OdeEncoderConfig
from odevit.distill.encoder import OdeEncoder
from odevit.distill.layout import with_registers
from odevit.distill.origin import describe, rebuild
from odevit.distill.pixels import PROCESSOR
from odevit.field import VectorField
from odevit.model.layout import TokenLayout
from odevit.shapes import Logits, Pixels, Tokens
from odevit.solver import Penalty, Save, Solution, Solver, Stats, Stop

ENCODER = "encoder.json"
WEIGHTS = "model.safetensors"
MASKS = ("attention_mask", "attn_mask", "head_mask", "is_causal")


class OdeStudent(nn.Module):
    """image -> embed -> x(0) -> dx/dt = f(x) -> x(T) -> norm, head -> answer.

    A copy of a ViT whose list of blocks is one equation. Only the equation is trained: everything else is the
    original's, frozen, and stays in evaluation mode. Made by `get_ode_model`.

    Args:
        model: the operated copy.
        config: the resolved configuration of the equation.
        anatomy: of the original.
        original: the model that was operated on, for `unload`; None when it is not at hand.
        original_parameters: how many parameters it has.
        processor: the content of its preprocessor_config.json, when known.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OdeEncoderConfig,
        anatomy: Anatomy,
        *,
        original: nn.Module | None,
        original_parameters: int,
        processor: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.anatomy = anatomy
        self.original_parameters = original_parameters
        self.processor = processor
        self._original = _Kept(original)

    @property
    def encoder(self) -> OdeEncoder:
        """What stands in the place of the blocks."""
        return next(module for module in self.model.modules() if isinstance(module, OdeEncoder))

    @property
    def field(self) -> VectorField:
        """f, shared by the whole way."""
        return self.encoder.field

    def forward(
        self,
        pixel_values: Pixels,
        *,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        stop: str | Stop | None = None,
        depth: str | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The operated model's own output for images.

        Args:
            pixel_values: [batch, channel, height, width], normalised as for the original.
            solver, steps, horizon: how to integrate this time; the weights do not change.
            stop: let each sample stop by itself: "velocity", "kl", "bound", with a tolerance "kl:0.01", or a `Stop`.
            depth: "equilibrium" solves for the rest point instead of integrating.
            output_hidden_states: every state of the trajectory, the start included, in the teacher's width.
            output_attentions: one map for each evaluation of the field; `inner_layout` says which token is which.
            kwargs: whatever else the original's forward takes, masks excepted.
        """
        self._refuse_masks(kwargs)
        base_config = getattr(self.model, "config", None)
        wants_states = _wanted(output_hidden_states, base_config, "output_hidden_states")
        wants_maps = _wanted(output_attentions, base_config, "output_attentions")
        save = Save("all" if wants_states else (), attentions=wants_maps) if wants_states or wants_maps else None
        how = Integration(solver, steps, horizon, save, stop=stop)
        if how == AS_CONFIGURED and depth is None:
            return self.model(pixel_values, **kwargs)
        if stop is not None:
            how = replace(how, read=self.reader(pixel_values, **kwargs))

        encoder = self.encoder
        reached: list[Solution] = []

        def integrate(x0: Tokens) -> Solution:
            reached.append(encoder.integrate(x0, how, depth))
            return reached[-1]

        output = self._run(integrate, pixel_values, kwargs)
        asked: dict[str, Any] = {}
        if wants_states:
            asked["hidden_states"] = reached[-1].states
        if wants_maps:
            asked["attentions"] = reached[-1].attentions
        return _completed(output, asked)

    def reader(self, pixel_values: Pixels, **kwargs: Any) -> Callable[[Tokens], Logits]:
        """What the head says of states on the trajectories of these images; `kwargs` are the original's."""
        height, width = pixel_values.shape[-2:]

        def read(state: Tokens) -> Logits:
            logits = answer_of(self.model, self.readout(state, size=(height, width), **kwargs)).logits
            if logits is None:
                raise ValueError(f"a {type(self.model).__name__} has no head to ask; use stop='velocity'")
            return logits

        return read

    def states(
        self,
        pixel_values: Pixels,
        *,
        steps: int | None = None,
        horizon: float | None = None,
        solver: str | Solver | None = None,
        save: Save | str | Iterable[int] | None = "all",
        penalties: Mapping[str, Penalty] | None = None,
        **kwargs: Any,
    ) -> Solution:
        """The trajectory of images in the teacher's width, as a `Solution`; `kwargs` are for the embedding."""
        how = Integration(solver, steps, horizon, save, penalties)
        return self.encoder.integrate(self.embed(pixel_values, **kwargs), how)

    def embed(self, pixel_values: Pixels, **kwargs: Any) -> Tokens:
        """x(0) in the teacher's width: what the first block would receive."""
        self._refuse_masks(kwargs)
        received: list[Tokens] = []

        def keep(x0: Tokens) -> Solution:
            received.append(x0)
            return _still(x0)

        self._run(keep, pixel_values, kwargs)
        return received[0]

    def readout(self, state: Tokens, *, size: tuple[int, int] | None = None, **kwargs: Any) -> Any:
        """What the model makes of a state after the blocks: norm, pooling, head. With gradient.

        Args:
            state: [batch, token, dim] in the teacher's width, from anywhere on a trajectory.
            size: height and width of the images it belongs to, when they are not the model's own.
            kwargs: whatever else the original's forward takes.
        """
        if state.ndim != 3 or state.shape[-1] != self.anatomy.width:
            raise ValueError(
                f"the state has the shape {tuple(state.shape)}; expected [batch, token, {self.anatomy.width}], "
                "the teacher's width, as states() and embed() give it"
            )
        # The blocks' answer is given, so that the image before them does not matter: one of zeros will do.
        pixels = blank(self.model, self.anatomy.channels, size or self.anatomy.size)
        return self._run(lambda _: _still(state), pixels, kwargs)

    def layout(self, pixel_values: Pixels | None = None) -> TokenLayout:
        """Where CLS, patches and registers stand; for the model's own image size unless images are given."""
        if pixel_values is None:
            return self.anatomy.layout(self.model)
        height, width = pixel_values.shape[-2:]
        return self.anatomy.layout(self.model, (height, width))

    def inner_layout(self, pixel_values: Pixels | None = None) -> TokenLayout:
        """The same inside the equation, where the student's own registers stand behind the teacher's tokens."""
        return with_registers(self.layout(pixel_values), self.config.registers)

    def unload(self) -> nn.Module:
        """The model that was operated on, as it was."""
        if self._original.model is None:
            raise ValueError(
                "this student was loaded from a folder, which holds no original blocks; "
                "pass OdeStudent.from_pretrained(folder, original=model) to be able to unload"
            )
        return self._original.model

    def summary(self) -> str:
        """One line: how many parameters are trained, how many there are, and how many the original has."""
        total = sum(parameter.numel() for parameter in self.parameters())
        trainable = sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
        return (
            f"trainable parameters: {trainable:,} of {total:,} ({100 * trainable / total:.1f}%); "
            f"the original has {self.original_parameters:,} ({self.original_parameters / total:.1f} times as many)"
        )

    def print_summary(self) -> None:
        """Print `summary`."""
        print(self.summary())

    def train(self, mode: bool = True) -> OdeStudent:
        """Set the equation to training; the frozen parts stay in evaluation, where the teacher's states come from."""
        super().train(False)
        self.training = mode
        self.encoder.train(mode)
        return self

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """Recompute steps in the backward pass. Same name and argument as in transformers, for its Trainer."""
        self.encoder.depth.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep what steps need for the backward pass."""
        self.encoder.depth.gradient_checkpointing = False

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write everything but the original's blocks: equation, frozen parts, configurations, image processor."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save(folder / ENCODER)
        describe(self.model, folder)
        weights = {name: value.detach().cpu().contiguous() for name, value in self._weights().items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        if self.processor is not None:
            (folder / PROCESSOR).write_text(json.dumps(self.processor, indent=2, sort_keys=True) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], original: nn.Module | None = None) -> OdeStudent:
        """Read what `save_pretrained` wrote, in evaluation mode.

        Args:
            folder: of the student.
            original: the model that was operated on. `unload` gives it back, and a model that cannot be built from
                the folder alone (one that is neither transformers', timm's nor ours) is built from it.
        """
        from odevit.distill.pixels import read_processor
        from odevit.distill.surgery import operate

        folder = Path(folder)
        lacking = [name for name in (ENCODER, WEIGHTS) if not (folder / name).is_file()]
        if lacking:
            raise ValueError(
                f"{folder} has no {' and no '.join(lacking)}; expected a folder that OdeStudent.save_pretrained wrote"
            )
        config = OdeEncoderConfig.load(folder / ENCODER)
        base = rebuild(folder) if original is None else original
        student = operate(base, config, keep=original is not None, initialise=False)
        student.processor = read_processor(folder)
        student._load_weights(load_file(folder / WEIGHTS), folder)
        return student.eval()

    def _weights(self) -> dict[str, Tensor]:
        """Equation and frozen parts apart, so that it does not matter what a version calls the list of blocks."""
        inside = f"{self.anatomy.place.name}."
        frozen = {name: value for name, value in self.model.state_dict().items() if not name.startswith(inside)}
        return {
            **{f"encoder.{name}": value for name, value in self.encoder.state_dict().items()},
            **{f"model.{name}": value for name, value in frozen.items()},
        }

    def _load_weights(self, weights: dict[str, Tensor], folder: Path) -> None:
        expected = self._weights()
        missing, foreign = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        unequal = [key for key in expected.keys() & weights.keys() if expected[key].shape != weights[key].shape]
        if missing or foreign or unequal:
            raise ValueError(
                f"the weights in {folder} do not fit {type(self.model).__name__}: missing {missing[:5]}, of no use "
                f"{foreign[:5]}, of another shape {sorted(unequal)[:5]}; pass original=, the model that was operated on"
            )

        def under(prefix: str) -> dict[str, Tensor]:
            # Copied out of the file's memory, whose alignment would change the last digit of a product.
            return {
                name.removeprefix(prefix): value.to(expected[name].device, copy=True)
                for name, value in weights.items()
                if name.startswith(prefix)
            }

        # Assigned, not copied into: the frozen parts of a teacher in half precision stay in half precision.
        self.encoder.load_state_dict(under("encoder."), assign=True)
        self.model.load_state_dict(under("model."), strict=False, assign=True)

    def _run(self, blocks: Callable[[Tokens], Solution], pixels: Pixels, kwargs: dict[str, Any]) -> Any:
        """The model's output with `blocks` in the place of the equation."""
        with self.anatomy.place.exchanged(self.model, blocks):
            return self.model(pixels, **kwargs)

    def _refuse_masks(self, kwargs: dict[str, Any]) -> None:
        given = [name for name in MASKS if kwargs.get(name) is not None and kwargs[name] is not False]
        if given:
            raise ValueError(f"{', '.join(given)} was given, but a field looks at every token; leave it out")


class _Kept:
    """A model that is remembered but is no part: not trained, not moved, not saved, not copied along."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return self


def _still(state: Tokens) -> Solution:
    """A trajectory that goes nowhere."""
    return Solution(state=state, time=0.0, stats=Stats(nfe=0, steps=0))


def _wanted(asked: bool | None, config: Any, name: str) -> bool:
    return bool(getattr(config, name, False) if asked is None else asked)


def _completed(output: Any, asked: dict[str, Any]) -> Any:
    """A model's output with what was asked for beside it."""
    own = isinstance(output, ModelOutput) and is_dataclass(output)
    known = {field.name for field in fields(output)} if own else set()
    homeless = [name for name in asked if name not in known]
    if homeless:
        raise ValueError(
            f"{' and '.join(homeless)} were asked for, but an output of the type {type(output).__name__} has no place "
            "for them; ask states(pixel_values, save=...), or leave return_dict out"
        )
    for name, value in asked.items():
        output[name] = value
    return output
