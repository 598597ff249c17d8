"""x(t_1), ..., x(t_k) as maps [batch, channel, row, column]: what a detector or a segmenter is put on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.backbone_utils import BackboneMixin
from transformers.modeling_outputs import BackboneOutput

from odevit.core.base import DEPTHS, HOOKS
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.modeling_odevit import OdeViTModel
from odevit.tokens import Pixels, TokenLayout, Tokens


class OdeViTBackbone(BackboneMixin, OdeViTModel):
    """x(t) for chosen t, after the final norm, each token at its place in the image.

    Stage n is the state after n of the N steps, x(t_n), and the stem is x(0): `out_features` and `out_indices` of the
    configuration choose times. A trajectory is continuous, so that more steps or another horizon give other times,
    with the same weights. Models that take a `backbone_config` (UperNet, DETR, ...) take one of odevit.
    """

    _keys_to_ignore_on_load_unexpected = [r"^classifier\."]  # noqa: RUF012 (Hugging Face expects a list)

    def __init__(self, config: OdeViTConfig) -> None:
        super().__init__(config)
        self.num_features = [config.hidden_size] * len(self.stage_names)

    def forward(  # type: ignore[override]
        self,
        pixel_values: Pixels,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool = False,
    ) -> BackboneOutput | tuple[Any, ...]:
        """The maps of the chosen stages; the arguments are those of `OdeViTModel`."""
        last = len(self.stage_names) - 1
        chosen = [index % (last + 1) for index in self.out_indices]
        early = [index for index in chosen if index != last]  # a depth without a trajectory still has an end
        encoded: Any = OdeViTModel.forward(
            self,
            pixel_values,
            save=early,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            interpolate_pos_encoding=interpolate_pos_encoding,
        )
        solution, layout = encoded.trajectory, self.layout(*pixel_values.shape[2:])
        states = (
            enumerate(solution.states) if encoded.hidden_states else zip(sorted(early), solution.states, strict=True)
        )
        kept = {**dict(states), last: solution.state}
        maps: Any = tuple(self.map_of(kept[index], layout) for index in chosen)
        output = BackboneOutput(
            feature_maps=maps,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        return output if return_dict is None or return_dict else output.to_tuple()

    def map_of(self, state: Tokens, layout: TokenLayout) -> Pixels:
        """norm(x) of the patches, [batch, channel, row, column]."""
        return self.norm(state)[:, layout.patches].transpose(1, 2).unflatten(2, layout.grid).contiguous()


@HOOKS.register("stages_at")
def stages_at(config: OdeViTConfig, times: Iterable[float]) -> list[str]:
    """The names of the stages at these times; without an equation, times are the numbers of the layers."""
    names, wanted = config.stage_names, list(times)
    edges = config.solver_config.edges if DEPTHS[config.depth].has_trajectory else map(float, range(len(names)))
    known = dict(zip(edges, names, strict=True))
    nearest = [min(known, key=lambda stage, t=t: abs(stage - t)) for t in wanted]  # type: ignore[misc]
    if missing := [t for t, stage in zip(wanted, nearest, strict=True) if abs(stage - t) > 1e-6 * max(known)]:
        raise ValueError(
            f"no stage stands at t = {', '.join(f'{t:g}' for t in missing)}; expected some of "
            f"{', '.join(f'{stage:.4g}' for stage in known)}, or take other steps"
        )
    return [known[stage] for stage in nearest]
