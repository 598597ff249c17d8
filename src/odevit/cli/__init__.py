"""odevit VERB WORD ... key=value ...: every verb is a Python function with the same arguments.

A new verb NAME is a function and a `Verb` called NAME in a file beside this one, and a line in both tables below.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from odevit.errors import unknown_name
from odevit_command import answer

if TYPE_CHECKING:
    from odevit.cli.answering import Evaluation as Evaluation
    from odevit.cli.answering import Prediction as Prediction
    from odevit.cli.answering import evaluate as evaluate
    from odevit.cli.answering import predict as predict
    from odevit.cli.informing import info as info
    from odevit.cli.parser import Command
    from odevit.cli.picturing import analyze as analyze
    from odevit.cli.recipes import distill as distill
    from odevit.cli.recipes import train as train
    from odevit.compare.runner import compare as compare
    from odevit.explorer.film import explore as explore
    from odevit.explorer.server import serve as serve


HOMES = {
    "train": "recipes",
    "distill": "recipes",
    "eval": "answering",
    "analyze": "picturing",
    "explore": "picturing",
    "predict": "answering",
    "compare": "contending",
    "serve": "showing",
    "info": "informing",
}
"""Verb -> its module, which is loaded with the first use of the verb."""

NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""How torch's allocators say it."""

GOES_ON = {"compare": "; typed again, it goes on"}
GOES_ON |= dict.fromkeys(("train", "distill"), "; a run that has begun goes on with resume=true")
"""What to do after an interruption."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Errors of use are one sentence on standard error, not a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if answer(words):
        return 0
    name, *rest = words
    if name not in HOMES:
        print(unknown_name("verb", name, HOMES) + " See odevit --help", file=sys.stderr)
        return 2
    from transformers.utils import logging

    from odevit.train.callbacks import DivergedError

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # in a log file, a progress bar is a thousand lines
    try:
        verb_of(name).run(rest)
        return 0
    except (ValueError, ImportError, OSError, DivergedError) as error:
        print(f"odevit {name}: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY)):
            raise
        print(
            f"odevit {name}: there is not enough memory ({str(error).splitlines()[-1]}); take a smaller model, image "
            "or batch",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"odevit {name}: interrupted{GOES_ON.get(name, '')}", file=sys.stderr)
        return 130


def verb_of(name: str) -> Command:
    """A verb by its name."""
    verb: Command = getattr(import_module(f"odevit.cli.{HOMES[name]}"), name.upper())
    return verb


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> Any:
        """`train`, `evaluate`, ...: the function of a verb, or what it returns."""
        verb = {"evaluate": "eval", "Evaluation": "eval", "Prediction": "predict"}.get(name, name)
        if verb not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"odevit.cli.{HOMES[verb]}"), name)
