"""Names of the last release that have changed: they still work, with a DeprecationWarning that gives the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from odevit.core.base import HOOKS, Depth
from odevit.core.image_model import ImageModel
from odevit.core.solution import Solution
from odevit.core.solver_config import SolverConfig

MODULES = {
    "field": "core.base core.field core.attention core.layers attention time_varying time_varying.low_rank",
    "field.attention": "core.attention attention",
    "solver": "core.base core.runge_kutta core.splitting core.exponential core.solution core.solve core.solver_config"
    " solvers solvers.early_exit solvers.fixed_point solvers.implicit",
    "depth": "core.base core.ode_depth systems systems.layered systems.blocks systems.residual",
    "model": "core.configuration_odevit core.modeling_odevit core.image_model core.ode_depth hf.export"
    " hf.modeling_backbone hf.presets hf.processor loading surgery.configuration_student surgery.modeling_student"
    " surgery.surgery tokens",
    "film": "explorer.film",
    "app": "explorer.explorer explorer.server explorer.catalog explorer.url_state",
    "contest": "compare.runner",
    "look": "plotting",
}
"""Old module -> the modules that have its public names now."""

RENAMED = {
    "odevit.Way": "odevit.SolverConfig",
    "odevit.Save": "odevit.SaveAt",
    "odevit.errors.whole": "odevit.errors.integer",
    "odevit.errors.number": "odevit.errors.real",
    "odevit.analysis.Parting": "odevit.analysis.Divergence",
    "odevit.train.WaySampler": "odevit.train.SolverSampler",
    "odevit.data.match_names": "odevit.data.class_names.match_class_names",
    "odevit.data.named_sources": "odevit.data.source.DATA_SOURCES",
    "odevit.data.numbered_as": "odevit.data.class_names.align_classes",
    "odevit.analysis.untouched": "odevit.analysis.frozen",
    "odevit.objectives.spread": "odevit.objectives.channel_variance",
    "odevit.report.analyse": "odevit.report.analyze",
}
"""Old name -> new name, in packages that still exist; each of them calls `keep_old_names(__name__)`."""

CLASSES = {
    "Way": "SolverConfig",
    "Save": "SaveAt",
    "Askable": "ImageModel",
    "Departures": "ActiveBatch",
    "Moment": "StopState",
    "Walk": "LayerRecorder",
    "Change": "LowRankChange",
    "Shelf": "ModelCatalog",
}
"""Old name -> new name, in modules that have moved."""

ARGUMENTS = {"way": "solver_config", "read": "readout", "anatomy": "vit_spec"}
"""Old argument of a model's call, or of `get_ode_model`, -> new one."""

STUDENT = {
    "anatomy": "vit_spec",
    "outer_layout": "teacher_layout",
    "output": "teacher_readout",
    "outside": "to_teacher_space",
    "reading": "readout_weights",
    "states": "follow",
    "tokens": "teacher_embed",
}
"""Old attribute of an `OdeStudent` -> new one."""


METHODS = {
    (SolverConfig, "but"): "replace",
    (SolverConfig, "times"): "stretched",
    (SolverConfig, "numbers"): "to_dict",
    (ImageModel, "way"): "solver_config",
    (Depth, "way"): "solver_config",
    (Solution, "way"): "solver_config",
}
"""Old attribute of a class -> new one."""


@HOOKS.register("renamed_arguments")
def renamed_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under their new names; a TypeError for names that never existed."""
    for name in given:
        if name not in ARGUMENTS:
            raise TypeError(f"forward() got an unexpected keyword argument {name!r}")
        _warn(f"the argument {name}", ARGUMENTS[name])
    return {ARGUMENTS[name]: value for name, value in given.items()}


def renamed_in_student(student: Any, name: str) -> Any:
    """What a student's `__getattr__` returns for an old attribute."""
    _warn(f"OdeStudent.{name}", STUDENT[name])
    return partial(_states, student) if name == "states" else getattr(student, STUDENT[name])


def _states(student: Any, pixels: Any, *, save: Any = "all", **options: Any) -> Any:
    """The trajectory of images in the teacher's tokens."""
    output = student(pixels, save=save, on_failure="ignore", return_dict=True, **options)
    return student.encoder.decode_solution(output.trajectory, student.dtype)


def keep_old_names(package: str) -> None:
    """Let a package answer to the old names of its contents; call it at the end of its `__init__`."""

    def look_up(name: str) -> Any:
        old = f"{package}.{name}"
        if old not in RENAMED:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        _warn(old, RENAMED[old], stacklevel=3)
        home, _, name = RENAMED[old].rpartition(".")
        return getattr(import_module(home), name)

    # Set at run time: a type checker that sees `__getattr__` in a module accepts every name.
    vars(sys.modules[package])["__getattr__"] = look_up


def _old_attribute(owner: type, old: str, new: str) -> property:
    def get(instance: Any) -> Any:
        _warn(f"{owner.__name__}.{old}", f"{owner.__name__}.{new}", stacklevel=3)
        return getattr(instance, new)

    return property(get)


for (owner, old), new in METHODS.items():
    setattr(owner, old, _old_attribute(owner, old, new))


class Finder(MetaPathFinder, Loader):
    """Finds the old modules, as empty ones that look every name up in the new modules."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.removeprefix("odevit.") in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        homes = [f"odevit.{home}" for home in MODULES[module.__name__.removeprefix("odevit.")].split()]
        _warn(module.__name__, " and ".join(homes[:3]))

        def look_up(name: str) -> Any:
            for home in map(import_module, homes):
                for candidate in (name, CLASSES.get(name, name)):
                    if candidate in vars(home):
                        return vars(home)[candidate]
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = look_up


def _warn(old: str, new: str, stacklevel: int = 4) -> None:
    message = f"{old} is now {new}; the old name works until the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


sys.meta_path.append(Finder())  # last, so that it is never asked for a module that exists
