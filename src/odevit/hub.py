"""name -> a local path or a hub id; the hub is only used if it answers quickly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, get_session

TIMEOUT = 5.0
"""Seconds in which the hub must answer; its own client tries for half a minute."""
FILES = {".bin", ".csv", ".gz", ".jpeg", ".jpg", ".json", ".onnx", ".parquet", ".png", ".pt", ".pth", ".safetensors"}
FILES |= {".tar", ".txt", ".yaml", ".zip"}


def is_path(name: str) -> bool:
    """Whether a name can only be a path: a hub id is NAME or OWNER/NAME, and not the path of an existing file."""
    is_id = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?", name)
    inside_a_folder = "/" in name and Path(name).parts[0] != "/" and Path(Path(name).parts[0]).is_dir()
    return not is_id or inside_a_folder or Path(name).exists() or Path(name).suffix.lower() in FILES


def local_path_problem(name: str) -> str | None:
    """What is wrong with the path of a model; None for a folder or a hub id."""
    folder = Path(name).expanduser()
    if folder.is_dir() or not is_path(name):
        return None
    problem = "is a file" if folder.is_file() else "does not exist"
    return f"{problem}; expected a folder that save_pretrained wrote, or a hub id such as facebook/dino-vits16"


@contextmanager
def hub_access(name: object) -> Iterator[None]:
    """In this block, `name` may be downloaded. For a path, or if the hub does not answer, only the cache is used."""
    if is_path(str(name)):
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _is_reachable()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _is_reachable() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception:  # the client may use any HTTP library
        return False
    return True
