"""image -> embed -> x(0) -> Depth(field, solver) -> x(T) -> norm, head -> logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as hf_init
from transformers.utils import ModelOutput

from odevit.core.base import HOOKS, Depth, Field, Request, Solver
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.embedding import Embedding, Tokenizer
from odevit.core.field import Branch
from odevit.core.image_model import ImageModel
from odevit.core.layers import NORMS, TIME_INPUTS, CenterNorm, Projection, spectral_
from odevit.core.ode_depth import make_depth
from odevit.core.pooling import POOLINGS
from odevit.core.pretrained_model import OdePreTrainedModel
from odevit.core.solution import SaveAt, Solution, Stats, check_solution
from odevit.core.solver_config import SolverConfig
from odevit.tokens import AttentionMap, Logits, Pixels, TokenLayout, Tokens


@dataclass
class TrajectoryOutput(ModelOutput):
    """An output whose entries are tensors, with `trajectory`, the `Solution`, and `stats`, its cost, as attributes.

    They are attributes because code that takes an output apart (pipelines, exporters, the Trainer, DataParallel) only
    knows tensors and tuples of tensors. An output that is rebuilt from its entries, as Accelerate does in mixed
    precision, loses them: then both are None.
    """

    trajectory: ClassVar[Solution | None] = None
    stats: ClassVar[Stats | None] = None


@dataclass
class OdeViTModelOutput(TrajectoryOutput):
    """x(T) after the final norm and one vector per image.

    If asked for, hidden states are x at every step, attentions one map for each evaluation of the field, and penalties
    the value of each.
    """

    last_hidden_state: Tokens | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tokens, ...] | None = None
    attentions: tuple[AttentionMap, ...] | None = None
    penalties: dict[str, Tensor] | None = None


@dataclass
class OdeViTImageClassifierOutput(TrajectoryOutput):
    """`loss` (with labels) and `logits`, with the encoder's outputs."""

    loss: Tensor | None = None
    logits: Logits | None = None
    hidden_states: tuple[Tokens, ...] | None = None
    attentions: tuple[AttentionMap, ...] | None = None
    penalties: dict[str, Tensor] | None = None


def with_trajectory(output: Any, solution: Solution) -> Any:
    """An output of any class with the attributes `trajectory` and `stats`."""
    output.trajectory, output.stats = solution, solution.stats
    return output


class OdeViTPreTrainedModel(OdePreTrainedModel):
    """Loading and initialisation, shared by the models."""

    config_class = OdeViTConfig
    config: OdeViTConfig
    base_model_prefix = "odevit"

    def init_weights(self) -> None:
        super().init_weights()
        for module in self.modules():
            if isinstance(module, Field):
                module.tie_knots()

    def _initialize_weights(self, module: nn.Module, *_: Any, **__: Any) -> None:
        # transformers skips modules of other packages that own no tensors, as many depths do. The method below looks
        # at the mark of every tensor itself.
        super()._initialize_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the tensors that a module owns itself.

        Tensors from a checkpoint are left alone: Hugging Face marks them, and its initialisers look at the mark.
        """
        std = self.config.initializer_range
        # Patches that do not overlap are a linear map, as in the field.
        is_patching = isinstance(module, nn.Conv2d) and module.stride == module.kernel_size
        if isinstance(module, Projection) or is_patching:
            weight = cast(Tensor, module.weight)
            if self.config.init == "normal":
                hf_init.trunc_normal_(weight, std=std)
            elif not getattr(weight, "_is_hf_initialized", False):
                spectral_(weight)
        elif isinstance(module, nn.Linear):
            hf_init.trunc_normal_(module.weight, std=std)
        elif isinstance(module, nn.Conv2d):
            hf_init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, CenterNorm | nn.LayerNorm | nn.RMSNorm):
            hf_init.ones_(module.weight)
        elif isinstance(module, TIME_INPUTS["modulate"]):  # type: ignore[arg-type]
            hf_init.zeros_(cast(Tensor, module.weight))
        elif isinstance(module, Branch) and module.residual_scale is not None:
            hf_init.constant_(module.residual_scale, float(self.config.residual_scale or 0.0))
        elif isinstance(module, Embedding):
            for tokens in (module.cls_token, module.register_tokens, module.positions):
                if tokens is not None:
                    hf_init.trunc_normal_(tokens, std=std)
        elif isinstance(module, Depth):
            module.scale_initial_weights()  # after its parts, which were initialised before it
        if isinstance(bias := getattr(module, "bias", None), Tensor):
            hf_init.zeros_(bias)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a model from a folder, a hub id, or the name of a bundled one.

        A checkpoint that does not fit is refused instead of completed with random numbers. A new head on an encoder's
        checkpoint is possible, to fine-tune it.
        """
        return HOOKS["from_pretrained"](super().from_pretrained, pretrained_model_name_or_path, *args, **kwargs)

    def own_processor(self) -> Any:
        return HOOKS["image_processor"](self.config)

    def get_input_embeddings(self) -> nn.Module:
        """The module that makes tokens of pixels."""
        return cast(OdeViTModel, self.base_model).embedding.tokenizer

    def set_input_embeddings(self, value: nn.Module) -> None:
        cast(OdeViTModel, self.base_model).embedding.tokenizer = cast(Tokenizer, value)


class OdeViTModel(OdeViTPreTrainedModel):
    """image -> embed -> x(0) -> depth -> x(T) -> norm -> pooled vector."""

    def __init__(self, config: OdeViTConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)
        self.depth = make_depth(config, self.layout())
        self.norm = nn.Identity() if config.final_norm is None else NORMS[config.final_norm](config.hidden_size)
        self.pooling = POOLINGS[config.pooling](config.hidden_size)
        self.fuse_attention()
        self.post_init()

    def layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        """Where CLS, patches and registers are; for the model's own image size unless another is given."""
        size = self.config.image_size
        return self.embedding.layout(size if height is None else height, size if width is None else width)

    def forward(
        self,
        pixel_values: Pixels,
        *,
        solver_config: SolverConfig | None = None,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        save: SaveAt | str | Iterable[int] | None = None,
        penalties: Mapping[str, Any] | None = None,
        adjoint: bool = False,
        stop: Any = None,
        readout: Callable[[Tokens], Logits] | None = None,
        depth: str | None = None,
        on_failure: str | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        interpolate_pos_encoding: bool = False,
        return_dict: bool | None = None,
        **renamed: Any,
    ) -> OdeViTModelOutput | tuple[Any, ...]:
        """Integrate images.

        Args:
            pixel_values: [batch, channel, height, width], normalised.
            solver_config: how to integrate in this call; the weights do not change.
            solver, steps, horizon: the same as single arguments; what is not given is the model's own.
            save, penalties, adjoint, stop, readout: as for `solve`; the classifier passes its own `readout`.
            depth: "equilibrium" solves for the rest point instead of integrating, with the same weights.
            on_failure: what to do when the integration fails: "raise", "warn", or "ignore", which does not look; the
                configuration's unless given, and where that has none, an error in training and a warning otherwise.
            output_hidden_states: keep every state; the same as save="all".
            output_attentions: keep every attention map; turns fused attention off for this call.
            interpolate_pos_encoding: accept other image sizes by interpolating the positions.
            renamed: arguments under the names of the last release, which still work.
        """
        if renamed:
            current = HOOKS["renamed_arguments"](renamed)
            solver_config = current.get("solver_config", solver_config)
            readout = current.get("readout", readout)
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        wants_maps = self.config.output_attentions if output_attentions is None else output_attentions
        if wants_states or wants_maps:
            save = SaveAt.parse(save).also(states=bool(wants_states), attentions=bool(wants_maps))
        chosen = self.depth if depth is None else self.depth.as_depth(depth)
        if solver_config is None and not (solver is None and steps is None and horizon is None):
            solver_config = chosen.resolve(solver, steps, horizon)
        x0 = self.embedding(pixel_values, interpolate_pos_encoding)
        solution = chosen(x0, Request(solver_config, depth, save, penalties, adjoint, stop, readout))
        check_solution(solution, pixel_values, on_failure or self.config.on_failure, self.training)
        hidden, pooled = self.readout(solution.state, self.embedding.layout(*pixel_values.shape[2:]))
        output = OdeViTModelOutput(
            last_hidden_state=hidden,
            pooler_output=pooled,
            hidden_states=solution.states if wants_states else None,
            attentions=solution.attentions or None,
            penalties=dict(solution.penalties) or None,
        )
        return with_trajectory(output, solution) if return_dict is None or return_dict else output.to_tuple()

    def forward_features(self, pixel_values: Pixels, **options: Any) -> Tokens:
        """norm(x(T)), under the name that timm has for it; the options are those of a call."""
        return OdeViTModel.forward(self, pixel_values, **options)[0]

    def readout(self, state: Tokens, layout: TokenLayout | None = None) -> tuple[Tokens, Tensor]:
        """norm(x) and its pooled vector, for a state anywhere on a trajectory."""
        hidden = self.norm(state)
        return hidden, self.pooling(hidden, self.layout() if layout is None else layout)


class OdeViTForImageClassification(OdeViTPreTrainedModel, ImageModel):
    """OdeViTModel with a linear head."""

    def __init__(self, config: OdeViTConfig) -> None:
        super().__init__(config)
        self.odevit = OdeViTModel(config)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()

    @property
    def depth(self) -> Depth:  # type: ignore[override]
        return self.odevit.depth

    def embed(self, pixels: Pixels) -> Tokens:
        return self.odevit.embedding(pixels)

    def layout(self, height: int | None = None, width: int | None = None) -> TokenLayout:
        return self.odevit.layout(height, width)

    def readout(self, state: Tokens, layout: TokenLayout | None = None) -> Logits:
        return self.classifier(self.odevit.readout(state, layout)[1])

    def forward_features(self, pixel_values: Pixels, **options: Any) -> Tokens:
        """norm(x(T)), under the name that timm has for it; the options are those of a call."""
        return self.odevit.forward_features(pixel_values, **options)

    def readout_weights(self, state: Tokens, layout: TokenLayout | None = None) -> tuple[Tensor, str]:
        pooling = self.odevit.pooling
        return pooling.weights(self.odevit.norm(state), layout or self.layout()), pooling.query

    def forward(
        self, pixel_values: Pixels, labels: Tensor | None = None, return_dict: bool | None = None, **options: Any
    ) -> OdeViTImageClassifierOutput | tuple[Any, ...]:
        """Classify images; `labels` are class numbers [batch] or probabilities [batch, label].

        With `problem_type` "multi_label_classification" or "regression" in the configuration they are what that means
        in transformers: 0 or 1 for each label, or numbers; with a single label they are numbers anyway.

        `options` are those of `OdeViTModel`: solver_config, steps, horizon, stop, depth, save, output_attentions, ...
        """
        if options.get("stop") is not None:
            layout = self.layout(*pixel_values.shape[2:])
            options["readout"] = lambda state: self.readout(state, layout)
        encoded = self.odevit(pixel_values, **options)
        logits = self.classifier(encoded.pooler_output)
        loss = None if labels is None else self._loss(logits, labels)
        if loss is not None and self.training:
            loss = loss + sum(encoded.trajectory.costs.values())
        output = OdeViTImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            penalties=encoded.penalties,
        )
        return with_trajectory(output, encoded.trajectory) if return_dict is None or return_dict else output.to_tuple()

    def _loss(self, logits: Logits, labels: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        labels = labels.to(logits.device, logits.dtype if labels.is_floating_point() else None)
        kind, single = self.config.problem_type, self.config.num_labels == 1
        if kind == "single_label_classification" or (kind is None and not single):
            # Not by transformers' function: it takes probabilities for many labels, and writes that into the config.
            return F.cross_entropy(logits, labels)
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
