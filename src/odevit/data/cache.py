"""cache/<name>-<fingerprint>.safetensors: decoded pixels and labels, so that a second load takes a second.

The fingerprint is a hash of everything the pixels depend on: files with sizes and times, columns, image size.
Validation splits are carved out after loading and do not enter it. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from odevit.data.images import Images

logger = logging.getLogger(__name__)

_LAYOUT = 1  # raise when the meaning of the stored arrays changes


def cache_file(folder: str | Path, name: str, facts: object, suffix: str = ".safetensors") -> Path:
    """The file that holds, or will hold, what is made of `facts` (anything JSON can write)."""
    written = json.dumps([_LAYOUT, facts], sort_keys=True)
    fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return Path(folder).expanduser() / f"{readable}-{fingerprint}{suffix}"


def read_cache(file: Path) -> dict[str, Images] | None:
    """The parts stored in `file`, or None when it is missing or broken (then it is made again)."""
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
    """Store the parts."""
    pixels = {f"{part}.pixels": images.pixels.contiguous() for part, images in parts.items()}
    labels = {f"{part}.labels": images.labels.contiguous() for part, images in parts.items()}
    _write(file, lambda unfinished: save_file(pixels | labels, unfinished))


def read_statistics(file: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std stored in `file`, or None when it is missing or broken (then they are measured again)."""
    if not file.exists():
        return None
    try:
        stored = json.loads(file.read_text())
        return tuple(stored["mean"]), tuple(stored["std"])
    except (OSError, ValueError, KeyError) as error:
        logger.warning("the cached pixel statistics %s cannot be read (%s) and are measured again", file, error)
        return None


def write_statistics(file: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Store pixel statistics."""
    _write(file, lambda unfinished: unfinished.write_text(json.dumps({"mean": mean, "std": std})))


def _write(file: Path, write: Callable[[Path], object]) -> None:
    """Write under another name first, so that an interruption leaves no half-written file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    write(unfinished)
    unfinished.replace(file)
