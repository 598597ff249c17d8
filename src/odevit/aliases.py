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

MODULES = {
    "odevit.shapes": "odevit.tokens",
    "odevit.verbs": "odevit.cli",
    "odevit.explore": "odevit.film",
    "odevit.explore.film": "odevit.film.film",
    "odevit.explore.frames": "odevit.film.frames",
    "odevit.explore.overlay": "odevit.film.frames",
    "odevit.explore.plots": "odevit.film.frames",
    "odevit.explore.run": "odevit.film.film",
    "odevit.explore.story": "odevit.film.story",
    "odevit.field.attention.base": "odevit.field.attention",
    "odevit.field.attention.cosine": "odevit.field.attention",
    "odevit.field.attention.dot": "odevit.field.attention",
    "odevit.field.attention.hopfield": "odevit.field.attention",
    "odevit.field.attention.l2": "odevit.field.attention",
    "odevit.field.branch": "odevit.field.vector_field",
    "odevit.field.time": "odevit.field.norm",
    "odevit.field.initialisation": "odevit.field.projection",
    "odevit.model.image_processor": "odevit.model.processor",
    "odevit.model.layout": "odevit.tokens",
    "odevit.model.tokenizer": "odevit.model.embedding",
    "odevit.solver.anytime": "odevit.solver",
    "odevit.solver.base": "odevit.solver",
    "odevit.solver.dopri5": "odevit.solver",
    "odevit.solver.euler": "odevit.solver",
    "odevit.solver.exponential_euler": "odevit.solver",
    "odevit.solver.exponential_heun": "odevit.solver",
    "odevit.solver.fixed": "odevit.solver",
    "odevit.solver.heun": "odevit.solver",
    "odevit.solver.lie_trotter": "odevit.solver",
    "odevit.solver.midpoint": "odevit.solver",
    "odevit.solver.rk4": "odevit.solver",
    "odevit.solver.strang": "odevit.solver",
    "odevit.solver.tableau": "odevit.solver",
    "odevit.solver.tsit5": "odevit.solver",
    "odevit.depth.base": "odevit.depth",
    "odevit.analysis.attention": "odevit.analysis.looking",
    "odevit.analysis.attention_bound": "odevit.analysis.lipschitz",
    "odevit.analysis.depths": "odevit.analysis.comparison",
    "odevit.analysis.load": "odevit.model.load",
    "odevit.analysis.subject": "odevit.analysis.untouched",
    "odevit.data.digits": "odevit.data.source",
    "odevit.data.folder": "odevit.data.source",
    "odevit.data.hub": "odevit.data.source",
    "odevit.data.load": "odevit.data.loading",
    "odevit.data.parquet": "odevit.data.source",
    "odevit.data.picture": "odevit.data.decode",
    "odevit.data.prefetch": "odevit.data.batches",
    "odevit.data.random": "odevit.data.hashing",
    "odevit.data.split": "odevit.data.parts",
    "odevit.data.stream_batches": "odevit.data.stream",
    "odevit.data.augment.affine": "odevit.data.augment.geometry",
    "odevit.data.augment.beta": "odevit.data.augment.mix",
    "odevit.data.augment.box": "odevit.data.augment.boxes",
    "odevit.data.augment.crop": "odevit.data.augment.geometry",
    "odevit.data.augment.erasing": "odevit.data.augment.boxes",
    "odevit.data.augment.flip": "odevit.data.augment.geometry",
    "odevit.data.augment.targets": "odevit.data.augment.mix",
    "odevit.distill.anatomy": "odevit.model.anatomy",
    "odevit.distill.architectures": "odevit.model.anatomy",
    "odevit.distill.average": "odevit.model.surgery",
    "odevit.distill.cache": "odevit.distill.features",
    "odevit.distill.compose": "odevit.distill.distillation",
    "odevit.distill.configuration": "odevit.model.configuration_student",
    "odevit.distill.encoder": "odevit.model.encoder",
    "odevit.distill.layout": "odevit.tokens",
    "odevit.distill.origin": "odevit.model.origin",
    "odevit.distill.pixels": "odevit.model.processor",
    "odevit.distill.recipe": "odevit.distill.distillation",
    "odevit.distill.report": "odevit.report.student_page",
    "odevit.distill.run": "odevit.distill.distill_task",
    "odevit.distill.stopping": "odevit.distill.bound_stopping",
    "odevit.distill.student": "odevit.model.modeling_student",
    "odevit.distill.surgery": "odevit.model.surgery",
    "odevit.objectives.attention": "odevit.objectives.attention_matching",
    "odevit.objectives.logits": "odevit.objectives",
    "odevit.report.collect": "odevit.report.analyse",
    "odevit.train.integration": "odevit.train.ways",
    "odevit.train.run": "odevit.train.classifier",
}
"""old module -> new module; a name that it had is looked up in `NAMES` first, then in the new module."""

NAMES = {
    "odevit.verbs.load_model": "odevit.model.load",
    "odevit.analysis.load.load_subject": "odevit.model.load",
    "odevit.analysis.load.load_teacher": "odevit.distill.at_hand.teacher_of",
    "odevit.solver.solve_until": "odevit.solver.solve",
    "odevit.solver.anytime.solve_until": "odevit.solver.solve",
    "odevit.distill.OdeEncoder": "odevit.model.encoder.OdeEncoder",
    "odevit.distill.PixelStatistics": "odevit.model.processor.PixelStatistics",
    "odevit.distill.PrefixLayout": "odevit.tokens.PrefixLayout",
    "odevit.distill.OdeStudent": "odevit.model.OdeStudent",
    "odevit.distill.OdeEncoderConfig": "odevit.model.OdeStudentConfig",
    "odevit.distill.get_ode_model": "odevit.model.get_ode_model",
    "odevit.distill.configuration.OdeEncoderConfig": "odevit.model.OdeStudentConfig",
    "odevit.train.IntegrationSampler": "odevit.train.ways.WaySampler",
    "odevit.train.integration.IntegrationSampler": "odevit.train.ways.WaySampler",
}
"""old name -> new name, where the module is gone or the name itself has changed."""


def keep_old_names(module: str) -> None:
    """Let a module answer to its old names: one call at its end, with `__name__`."""

    def look_up(name: str) -> Any:
        old = f"{module}.{name}"
        if old in NAMES:
            home, _, new = NAMES[old].rpartition(".")
            _warn(old, NAMES[old])
            return getattr(import_module(home), new)
        if module in MODULES and not name.startswith("__"):
            return getattr(import_module(MODULES[module]), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    # Not as a statement in the module itself, from which a type checker would conclude that it has every name.
    vars(sys.modules[module])["__getattr__"] = look_up


class Finder(MetaPathFinder, Loader):
    """Finds the modules of the table. It stands last, so that a module that exists is never asked for here."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module that has nothing of its own and looks everything up in the new place."""
        _warn(module.__name__, MODULES[module.__name__])
        import_module(MODULES[module.__name__])  # an error of the new module is raised here, as it is
        keep_old_names(module.__name__)


def install() -> None:
    """Let `import` find the modules of the table."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} has moved; use {new}", DeprecationWarning, stacklevel=3)
