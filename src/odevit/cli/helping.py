"""help.json: what the verbs say about themselves, written down because asking them imports torch.

`python -m odevit.cli.helping` writes it anew, as `make format` does.
"""

from __future__ import annotations

import json
from pathlib import Path

from odevit.cli import HOMES, verb_of

FILE = Path(__file__).with_name("help.json")


def written() -> str:
    """The help of every verb as it is now."""
    return json.dumps({name: verb_of(name).page() for name in HOMES}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
