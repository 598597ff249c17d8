"""config.json -> odevit: how transformers finds our classes without `import odevit`.

transformers has no entry points for plugins. It has `auto_map`, names of classes in a Python file beside the weights,
which it imports with trust_remote_code=True. Our file does not contain the code; it imports it from odevit.
"""

from __future__ import annotations

import os
from pathlib import Path

from odevit.core.base import HOOKS

MODULE = "odevit_classes"
TEXT = '''\
"""The classes of this model, for pipeline(..., trust_remote_code=True) without `import odevit`; needs odevit."""

from odevit import OdeStudent, OdeStudentConfig, OdeViTBackbone, OdeViTConfig, OdeViTForImageClassification, OdeViTModel

__all__ = [
    "OdeStudent",
    "OdeStudentConfig",
    "OdeViTBackbone",
    "OdeViTConfig",
    "OdeViTForImageClassification",
    "OdeViTModel",
]
'''


@HOOKS.register("write_remote_code")
def write_code(folder: str | os.PathLike[str]) -> None:
    """Write the file beside a config.json."""
    (Path(folder) / f"{MODULE}.py").write_text(TEXT)
