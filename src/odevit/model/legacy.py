"""encoder.json, base.json, base/config.json -> OdeStudentConfig: students that version 0.1 saved."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn
from transformers import AutoConfig

from odevit.model.anatomy import examine
from odevit.model.configuration_student import OdeStudentConfig
from odevit.model.origin import rebuild
from odevit.model.processor import read_processor, statistics_of

ENCODER = "encoder.json"


def is_legacy_student(folder: Path) -> bool:
    """Whether a folder holds a student in the format of version 0.1."""
    return (folder / ENCODER).is_file() and not (folder / "config.json").is_file()


def legacy_config(folder: Path, original: nn.Module | None) -> OdeStudentConfig:
    """What such a folder says of its student. The weights have the same names as today."""
    equation = json.loads((folder / ENCODER).read_text())
    equation.pop("odevit_version", None)
    base = json.loads((folder / "base.json").read_text())
    base_config = AutoConfig.from_pretrained(folder / "base") if (folder / "base").is_dir() else None
    model = (rebuild(base, base_config) if original is None else original).eval()
    # The blocks that were replaced are counted in the rebuilt model, which still has them.
    return OdeStudentConfig(**equation).completed(
        model, examine(model), base, base_config, statistics_of(read_processor(folder), model)
    )
