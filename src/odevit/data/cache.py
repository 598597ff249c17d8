"""cache/<name>-<fingerprint>.safetensors: decoded pixels and labels, so that a second load takes a second.

The fingerprint is a hash of everything the tensors depend on: files with sizes and times, columns, image size.
Validation splits are carved out after loading and do not enter that of the pixels. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

logger = logging.getLogger(__name__)

_LAYOUT = 1  # raise when the meaning of the stored tensors changes


def cache_file(folder: str | Path, name: str, facts: object) -> Path:
    """The file that holds, or will hold, what is made from `facts` (anything JSON can write)."""
    written = json.dumps([_LAYOUT, facts], sort_keys=True)
    fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return Path(folder).expanduser() / f"{readable}-{fingerprint}.safetensors"


def read_cache(file: Path) -> dict[str, Tensor] | None:
    """The tensors stored in `file`, or None when it is missing or broken (then they are made again)."""
    if not file.exists():
        return None
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        logger.warning("the cached data set %s cannot be read (%s) and is made again", file, error)
        return None


def write_cache(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Store `tensors`; under another name first, so that an interruption leaves no half-written file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished)
    unfinished.replace(file)
