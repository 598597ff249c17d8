"""The command `odevit`: help and version come from files, at once; the rest imports the library, which takes seconds.

This module stands beside the package because importing any part of a package imports the package first, and torch with
it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OVERVIEW = """odevit makes depth continuous: Vision Transformers as ordinary differential equations.

  odevit train              train a model; without arguments, on digits in about a minute
  odevit distill            turn a ViT into an equation, without labels; by default on digits
  odevit eval RUN           accuracy, NFE and time, for several ways to integrate
  odevit analyze RUN        how stable a run is: figures, numbers, a verdict on one page
  odevit explore IMAGE...   films of the attention over integration time: GIF, MP4
  odevit predict IMAGE...   classify images with the bundled model or model=RUN
  odevit compare            systems of the family on the same data, budget, updates and batches: one page
  odevit serve              the explorer: watch an image move through depth, in the browser
  odevit info               versions, devices, and everything that has a name

For example:
  odevit train data=FOLDER                             your own images, one folder per class
  odevit train experiment=fast/cifar10 seed=1          a recipe (experiment=? lists them) and what to change in it
  odevit distill teacher=FOLDER|HUB/ID data=FOLDER     a student of your own ViT
  odevit eval RUN steps=4,8,12,24 solver=euler,heun    one row for each combination
  odevit eval RUN stop=kl:0.005                        each image goes only as far as it needs

odevit VERB --help lists the keys of a verb with their defaults; odevit --version says which version this is.
"""
WIDEST = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer at once where that is possible, and hand everything else to the library."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if answer(words):
            sys.stdout.flush()
            return 0
    except BrokenPipeError:  # who reads it has seen enough: odevit train --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    from odevit.cli import main as run

    return run(words)


def answer(words: Sequence[str]) -> bool:
    """Print what is asked about the command itself; False where the words ask for something else."""
    verb, *rest = words or ["--help"]
    folder = _package()
    pages = json.loads((folder / "cli/help.json").read_text())
    if verb == "--version":
        print("odevit", *re.findall(r'__version__ = "(.*)"', (folder / "version.py").read_text()))
    elif verb in pages and {"-h", "--help"} & {*rest}:
        show(pages[verb])
    elif verb in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
    else:
        return False
    return True


def show(page: dict[str, Any]) -> None:
    """Print the help of a verb: usage, what it does, tables of keys and their meanings, examples."""
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns) if sys.stdout.isatty() else WIDEST
    print(page["usage"], page["about"], sep="\n\n")
    for title, rows in page["tables"]:
        print(f"\n{title}" if title else "")
        left = min(30, max(len(key) for key, _ in rows)) + 4
        for key, meaning in rows:
            start = f"  {key}".ljust(left if meaning else 0)
            inside = textwrap.fill(meaning, width, initial_indent=" " * left, subsequent_indent=" " * left)
            print(start + inside[left:] if len(start) <= left else f"{start}\n{inside}".rstrip())
    print("\nExamples:", *page["examples"], sep="\n  ")


def _package() -> Path:
    spec = find_spec("odevit")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package odevit is not installed beside its command; pip install odevit")
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    sys.exit(main())
