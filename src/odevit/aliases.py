"""Names and modules that have moved: the old ones still work, with a DeprecationWarning that names the new place."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HOMES = {
    "cli": "verbs",
    "film": "explore explore.run",
    "tokens": "shapes model.layout",
    "field": "field.branch field.initialisation field.time",
    "field.attention": "field.attention.base field.attention.cosine field.attention.dot field.attention.l2",
    "solver": "solver.base solver.save solver.tableau solver.euler solver.midpoint solver.heun solver.rk4 solver.dopri5"
    " solver.tsit5 solver.lie_trotter solver.strang solver.exponential_euler solver.exponential_heun solver.anytime",
    "depth": "depth.base",
    "model": "model.image_processor",
    "model.load": "model.auto",
    "model.embedding": "model.tokenizer",
    "objectives": "objectives.attention objectives.logits",
    "data": "data.load data.statistics data.stream data.stream_batches",
    "data.augment": "data.augment.affine data.augment.crop data.augment.erasing data.augment.flip data.augment.targets",
    "analysis": "analysis.attention_bound",
    "train": "train.run train.integration",
    "distill": "distill.cache distill.configuration distill.encoder distill.layout distill.pixels distill.student"
    " distill.surgery",
    "distill.pretrained": "distill.head",
    "report": "report.collect",
}
"""New module -> the modules of version 0.1 whose public names it has now."""

MODULES = {f"odevit.{old}": f"odevit.{new}" for new, modules in HOMES.items() for old in modules.split()}

NAMES = {
    "odevit.verbs.load_model": "odevit.model.load",
    "odevit.solver.solve_until": "odevit.solver.solve",
    "odevit.distill.OdeEncoder": "odevit.model.encoder.OdeEncoder",
    "odevit.distill.OdeEncoderConfig": "odevit.model.OdeStudentConfig",
    "odevit.distill.OdeStudent": "odevit.model.OdeStudent",
    "odevit.distill.PixelStatistics": "odevit.model.processor.PixelStatistics",
    "odevit.distill.PrefixLayout": "odevit.tokens.PrefixLayout",
    "odevit.distill.get_ode_model": "odevit.model.get_ode_model",
    "odevit.train.IntegrationSampler": "odevit.train.WaySampler",
}
"""Old name -> new name, where the module has stayed or the name itself has changed."""


def keep_old_names(module: str) -> None:
    """Let a module answer to its old names: one call at its end, with `__name__`."""

    def look_up(name: str) -> Any:
        old = f"{module}.{name}"
        if old in NAMES:
            _warn(old, NAMES[old])
            home, _, name = NAMES[old].rpartition(".")
            return getattr(import_module(home), name)
        if module in MODULES and not name.startswith("__"):
            return getattr(import_module(MODULES[module]), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    # Not as a statement in the module itself, from which a type checker would conclude that it has every name.
    vars(sys.modules[module])["__getattr__"] = look_up


class Finder(MetaPathFinder, Loader):
    """Finds the modules of the table, as empty ones that look everything up in the new place."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        _warn(module.__name__, MODULES[module.__name__])
        import_module(MODULES[module.__name__])  # an error of the new module is raised here, as it is
        keep_old_names(module.__name__)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} has moved; use {new}", DeprecationWarning, stacklevel=3)


sys.meta_path.append(Finder())  # last, so that it is never asked for a module that exists
