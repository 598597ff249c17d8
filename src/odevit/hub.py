"""name -> a folder here, or an id of the hub, which is asked only if it answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, get_session

PATIENCE = 5.0
"""Seconds in which the hub must answer. Left to itself, its client tries for half a minute."""
FILES = {".bin", ".csv", ".gz", ".jpeg", ".jpg", ".json", ".onnx", ".parquet", ".png", ".pt", ".pth", ".safetensors"}
FILES |= {".tar", ".txt", ".yaml", ".zip"}


def is_path(name: str) -> bool:
    """Whether a name can only be a path: an id of the hub is NAME or OWNER/NAME, and is no file or folder here."""
    is_id = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?", name)
    below_a_folder = "/" in name and Path(name).parts[0] != "/" and Path(Path(name).parts[0]).is_dir()
    return not is_id or below_a_folder or Path(name).exists() or Path(name).suffix.lower() in FILES


def local_path_problem(name: str) -> str | None:
    """What is wrong with the name of a model, where that can be said without asking the hub."""
    folder = Path(name).expanduser()
    if folder.is_dir() or not is_path(name):
        return None
    problem = "is a file" if folder.is_file() else "does not exist"
    return f"{problem}; expected a folder that save_pretrained wrote, or a hub id such as facebook/dino-vits16"


@contextmanager
def hub_access(name: object) -> Iterator[None]:
    """In this block the hub is asked for `name` if it answers; otherwise there is only what was fetched before.

    For a folder here it is not asked at all.
    """
    if is_path(str(name)):
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _answers()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # of whichever HTTP library the hub's client uses
        return False
    return True
