"""Old public name -> new public name: old names work for one release, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any

RENAMED = {
    "odevit.analysis.untouched": "odevit.analysis.frozen",
    "odevit.objectives.spread": "odevit.objectives.channel_variance",
    "odevit.report.analyse": "odevit.report.analysis",
}
"""A public name that is renamed needs one line here; its package calls `keep_old_names(__name__)`."""


def keep_old_names(package: str) -> None:
    """Let a package answer to the old names of its contents; call it at the end of `__init__`."""

    def look_up(name: str) -> Any:
        new = RENAMED.get(old := f"{package}.{name}")
        if new is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warnings.warn(f"{old} is now {new}; the old name works until the next release", DeprecationWarning, 2)
        home, _, name = new.rpartition(".")
        return getattr(import_module(home), name)

    # Set at run time: a type checker that sees `__getattr__` in a module accepts every name.
    vars(sys.modules[package])["__getattr__"] = look_up
