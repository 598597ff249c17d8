"""cache/<name>-<fingerprint>.safetensors: decoded pixels and labels, so that a second load takes a second.

The fingerprint is a hash of everything the pixels depend on: files with sizes and times, columns, image size.
Validation splits are carved after loading and are no part of it. Nothing is pickled.
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

from odevit.data.images import Images

logger = logging.getLogger(__name__)

_LAYOUT = 1  # raise when the meaning of the stored arrays changes


def cache_file(folder: Path, name: str, facts: object) -> Path:
    """The file that holds, or will hold, the data set `name` made from `facts` (anything JSON can write)."""
    written = json.dumps([_LAYOUT, facts], sort_keys=True)
    fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return folder / f"{readable}-{fingerprint}.safetensors"


def read_cache(file: Path) -> dict[str, Images] | None:
    """The parts stored in `file`, or None when it is not there or broken (then it is made again)."""
    if not file.exists():
        return None
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        logger.warning("the cached data set %s cannot be read (%s) and is made again", file, error)
        return None
    parts = sorted({key.rpartition(".")[0] for key in tensors})
    return {part: Images(tensors[f"{part}.pixels"], tensors[f"{part}.labels"]) for part in parts}


def write_cache(file: Path, parts: Mapping[str, Images]) -> None:
    """Store the parts; under another name first, so that an interrupted write leaves no half file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for part, images in parts.items():
        tensors[f"{part}.pixels"] = images.pixels.contiguous()
        tensors[f"{part}.labels"] = images.labels.contiguous()
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    save_file(tensors, unfinished)
    unfinished.replace(file)


def read_statistics(file: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std stored in `file`, or None when it is not there or broken (then they are measured again)."""
    if not file.exists():
        return None
    try:
        kept = json.loads(file.read_text())
        return tuple(kept["mean"]), tuple(kept["std"])
    except (OSError, ValueError, KeyError) as error:
        logger.warning("the cached pixel statistics %s cannot be read (%s) and are measured again", file, error)
        return None


def write_statistics(file: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Store pixel statistics; under another name first, so that an interrupted write leaves no half file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    unfinished.write_text(json.dumps({"mean": mean, "std": std}))
    unfinished.replace(file)
