"""stem = x(0), stage n = x(t_n): the states of a trajectory by the names that backbones of transformers give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.backbone_utils import BackboneConfigMixin

from odevit.core.configuration_equation import EquationConfig
from odevit.core.depth import DEPTHS
from odevit.systems.layered import LayeredDepth


class StagedConfig(BackboneConfigMixin, EquationConfig):
    """A configuration that names the states of a trajectory: "stem", "stage1", ..., "stageN".

    What is not chosen stays open: x(T) is the last stage of however many steps there are.
    """

    def __post_init__(self, **kwargs: Any) -> None:
        features, indices = kwargs.pop("out_features", None), kwargs.pop("out_indices", None)
        super().__post_init__(**kwargs)
        if features is not None or indices is not None:
            self.set_output_features_output_indices(features, indices)

    @property
    def stage_names(self) -> list[str]:
        """What can be asked of a backbone; a depth that keeps no states on its way has two."""
        kind = DEPTHS[self.depth]
        stages = self.steps if kind.has_trajectory or issubclass(kind, LayeredDepth) else 1
        return ["stem", *(f"stage{number}" for number in range(1, stages + 1))]

    @property
    def stage_times(self) -> list[float]:
        """When the stages are: where the steps lie, or, without an equation, the numbers of the layers."""
        if DEPTHS[self.depth].has_trajectory:
            return self.solver_config.edges
        return [float(number) for number in range(len(self.stage_names))]

    def stages_at(self, times: Iterable[float]) -> list[str]:
        """The names of the stages x(t): `out_features=config.stages_at([2, 4, 6])`."""
        known, wanted = dict(zip(self.stage_times, self.stage_names, strict=True)), list(times)
        nearest = [min(known, key=lambda stage, t=t: abs(stage - t)) for t in wanted]  # type: ignore[misc]
        if beside := [t for t, stage in zip(wanted, nearest, strict=True) if abs(stage - t) > 1e-6 * max(known)]:
            raise ValueError(
                f"no stage stands at t = {', '.join(f'{t:g}' for t in beside)}; expected some of "
                f"{', '.join(f'{stage:.4g}' for stage in known)}, or take other steps"
            )
        return [known[stage] for stage in nearest]

    def set_output_features_output_indices(self, out_features: list[str] | None, out_indices: Any) -> None:
        self._out_features, self._out_indices = out_features, None if out_indices is None else list(out_indices)
        self.verify_out_features_out_indices()

    @property
    def _out_indices(self) -> list[int]:
        names, chosen = self.stage_names, self.__dict__.get("_stages", {})
        if chosen.get("out_indices") is not None:
            return list(chosen["out_indices"])
        return [names.index(name) for name in chosen.get("out_features") or names[-1:]]

    @_out_indices.setter
    def _out_indices(self, indices: list[int] | None) -> None:
        self.__dict__.setdefault("_stages", {})["out_indices"] = indices

    @property
    def _out_features(self) -> list[str]:
        names, chosen = self.stage_names, self.__dict__.get("_stages", {})
        if chosen.get("out_features") is not None:
            return list(chosen["out_features"])
        given = chosen.get("out_indices")
        return names[-1:] if given is None else [names[index] for index in given if -len(names) <= index < len(names)]

    @_out_features.setter
    def _out_features(self, features: list[str] | None) -> None:
        self.__dict__.setdefault("_stages", {})["out_features"] = features

    def to_dict(self) -> dict[str, Any]:
        values = EquationConfig.to_dict(self)
        return values | {name: given for name, given in values.pop("_stages", {}).items() if given is not None}
