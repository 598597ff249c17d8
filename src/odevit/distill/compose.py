"""key=value ... -> DistillRecipe: the command line through Hydra's groups."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.config_store import ConfigStore

from odevit.distill.recipe import DistillRecipe
from odevit.train.compose import compose_as

ConfigStore.instance().store(name="distill_schema", node=DistillRecipe)


def compose_distillation(overrides: Sequence[str] = ()) -> DistillRecipe:
    """The recipe that `odevit distill OVERRIDES` would run."""
    return compose_as(DistillRecipe, "distill", overrides)
