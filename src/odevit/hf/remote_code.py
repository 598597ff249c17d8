"""config.json -> odevit: how transformers finds our classes when nobody has said `import odevit`.

It has no entry points for plugins. What it has is `auto_map`, the names of classes in a Python file beside the weights,
which it imports when asked with trust_remote_code=True. That file need not hold the code; it can import who has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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


def auto_map(classes: Mapping[str, str]) -> dict[str, str]:
    """{"AutoConfig": "odevit_classes.OdeViTConfig", ...} for classes by the Auto class that asks for them."""
    return {auto: f"{MODULE}.{name}" for auto, name in classes.items()}


def write_code(folder: str | os.PathLike[str]) -> None:
    """Put the file beside a config.json."""
    (Path(folder) / f"{MODULE}.py").write_text(TEXT)
