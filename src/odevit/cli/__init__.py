"""odevit COMMAND WORD ... key=value ...: every command is a Python function with the same arguments.

To add a command NAME, write its function and its entry of `COMMANDS` in commands.py, add NAME to `NAMES` below, and run
`make format`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from odevit.errors import unknown_name
from odevit_command import print_help

if TYPE_CHECKING:
    from odevit.cli.commands import Evaluation as Evaluation
    from odevit.cli.commands import Prediction as Prediction
    from odevit.cli.commands import analyze as analyze
    from odevit.cli.commands import evaluate as evaluate
    from odevit.cli.commands import info as info
    from odevit.cli.commands import predict as predict
    from odevit.cli.parser import Command
    from odevit.cli.recipes import distill as distill
    from odevit.cli.recipes import train as train
    from odevit.compare.runner import compare as compare
    from odevit.explorer.film import explore as explore
    from odevit.explorer.server import serve as serve

NAMES = ("train", "distill", "eval", "analyze", "explore", "predict", "compare", "serve", "info")
RECIPES = ("train", "distill")
"""Commands in recipes.py; the others are in commands.py. Each of the two is imported when it is needed."""

OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""Parts of the messages of torch's allocators."""

RESUME = {"compare": "; run it again to resume"}
RESUME |= dict.fromkeys(RECIPES, "; pass resume=true to continue a run that has started")
"""What to do after an interruption."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. Errors of use are printed without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if print_help(words):
        return 0
    name, *rest = words
    if name not in NAMES:
        print(unknown_name("command", name, NAMES) + " See odevit --help", file=sys.stderr)
        return 2
    from transformers.utils import logging

    from odevit.train.trainer import DivergedError

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # in a log file, a progress bar is a thousand lines
    try:
        return find_command(name).run(rest)
    except (ValueError, ImportError, OSError, DivergedError) as error:
        print(f"odevit {name}: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or any(part in str(error) for part in OUT_OF_MEMORY)):
            raise
        reason = str(error).splitlines()[-1]
        print(f"odevit {name}: not enough memory ({reason}); use a smaller model, image or batch", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"odevit {name}: interrupted{RESUME.get(name, '')}", file=sys.stderr)
        return 130


def find_command(name: str) -> Command:
    """A command by its name."""
    command: Command = import_module(f"odevit.cli.{'recipes' if name in RECIPES else 'commands'}").COMMANDS[name]
    return command


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> Any:
        """`train`, `evaluate`, ...: the function of a command, or what it returns."""
        if name in ("evaluate", "predict", "analyze", "Evaluation", "Prediction"):
            return getattr(import_module("odevit.cli.commands"), name)
        if name not in NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return find_command(name).function
