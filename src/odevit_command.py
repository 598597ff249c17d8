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
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OVERVIEW = """odevit replaces the blocks of a Vision Transformer with an ordinary differential equation.

  odevit train              train a model; without arguments, on digits in about a minute
  odevit distill            distil a ViT into an ODE, without labels; by default on digits
  odevit eval RUN           accuracy, NFE and time, with one or several solver settings
  odevit analyze RUN        how stable a model is: figures, numbers and a verdict on one page
  odevit explore IMAGE...   films of the attention over integration time: GIF, MP4
  odevit predict IMAGE...   classify images with the bundled model or model=RUN
  odevit compare            train several systems on the same data and budget: one page
  odevit serve              the explorer: watch an image move through depth, in the browser
  odevit info               versions, devices, and all names that arguments can take

For example:
  odevit train data=FOLDER                             your own images, one folder per class
  odevit train experiment=fast/cifar10 seed=1          a recipe (experiment=? lists them) with a change
  odevit distill teacher=FOLDER|HUB/ID data=FOLDER     a student of your own ViT
  odevit eval RUN steps=4,8,12,24 solver=euler,heun    one row for each combination
  odevit eval RUN stop=kl:0.005                        each image stops as early as it can

odevit COMMAND --help shows the options of a command, --help-all all of them; odevit --version shows the version.
"""
MAX_WIDTH = 120
HELP = {"-h", "--help", "--help-all"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print help and version without importing the library; run everything else."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if print_help(words):
            sys.stdout.flush()
            return 0
    except BrokenPipeError:  # `odevit train --help | head` closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    from odevit.cli import main as run

    return run(words)


def print_help(words: Sequence[str]) -> bool:
    """Print help or version if the words ask for it; False if they ask for something else."""
    command, *rest = words or ["--help"]
    folder = _package()
    pages = json.loads((folder / "cli/help.json").read_text())
    if command == "--version":
        print("odevit", *re.findall(r'__version__ = "(.*)"', (folder / "version.py").read_text()))
    elif command in pages and HELP & {*rest}:
        print_page(pages[command], everything="--help-all" in rest)
    elif command in HELP or command == "help":
        print(OVERVIEW, end="")
    else:
        return False
    return True


def print_page(page: Mapping[str, Any], everything: bool = False) -> None:
    """Print the help of a command: usage, description, tables of options, examples."""
    width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns) if sys.stdout.isatty() else MAX_WIDTH
    print(page["usage"], page["about"], sep="\n\n")
    more = page.get("more", {})
    for title, rows in (page["tables"] | (more if everything else {})).items():
        print(f"\n{title}:" if title else "")
        left = min(30, max(map(len, rows))) + 4
        for key, meaning in rows.items():
            start = f"  {key}".ljust(left if meaning else 0)
            inside = textwrap.fill(meaning, width, initial_indent=" " * left, subsequent_indent=" " * left)
            print(start + inside[left:] if len(start) <= left else f"{start}\n{inside}".rstrip())
    if more and not everything:
        print(f"\n{len(next(iter(more.values())))} more options: {' '.join(page['usage'].split()[:2])} --help-all")
    print("\nExamples:", *page["examples"], sep="\n  ")


def _package() -> Path:
    spec = find_spec("odevit")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package odevit is not installed beside its command; pip install odevit")
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    sys.exit(main())
