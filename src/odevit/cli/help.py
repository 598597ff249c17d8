"""help.json: the help of every command, written to a file because importing the commands imports torch.

`python -m odevit.cli.help` writes it, as `make format` does.
"""

from __future__ import annotations

import json
from pathlib import Path

from odevit.cli import NAMES, find_command

FILE = Path(__file__).with_name("help.json")


def make_help() -> str:
    """The help of every command, with one line for each key."""
    return json.dumps({name: find_command(name).help() for name in NAMES}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(make_help())
