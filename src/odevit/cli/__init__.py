"""odevit VERB WORD ... key=value ...: every verb is a Python function with the same arguments.

A new verb NAME is a function and a `Verb` called NAME in a file beside this one, and a line in both tables below.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from odevit.errors import unknown_name

if TYPE_CHECKING:
    from odevit.cli.answering import Evaluation as Evaluation
    from odevit.cli.answering import Prediction as Prediction
    from odevit.cli.answering import evaluate as evaluate
    from odevit.cli.answering import predict as predict
    from odevit.cli.informing import info as info
    from odevit.cli.picturing import analyze as analyze
    from odevit.cli.picturing import explore as explore
    from odevit.cli.recipes import distill as distill
    from odevit.cli.recipes import train as train
    from odevit.cli.words import Verb


HOMES = {
    "train": "recipes",
    "distill": "recipes",
    "eval": "answering",
    "analyze": "picturing",
    "explore": "picturing",
    "predict": "answering",
    "info": "informing",
}
"""Verb -> its module, which is loaded with the first use of the verb; that keeps --help fast."""

OVERVIEW = """odevit makes depth continuous: Vision Transformers as ordinary differential equations.

  odevit train              train a model; without arguments, on digits in about a minute
  odevit distill            turn a ViT into an equation, without labels; by default on digits
  odevit eval RUN           accuracy, NFE and time, for several ways to integrate
  odevit analyze RUN        how stable a run is: figures, numbers, a verdict on one page
  odevit explore IMAGE...   films of the attention over integration time: GIF, MP4
  odevit predict IMAGE...   classify images with the bundled model or model=RUN
  odevit info               versions, devices, and everything that has a name

For example:
  odevit train experiment=fast/cifar10 seed=1          a recipe (experiment=? lists them) and what to change in it
  odevit train data=FOLDER|HUB/ID model.leak=0         your own data; any key of the recipe can be given
  odevit distill teacher=FOLDER|HUB/ID data=FOLDER     a student of your own ViT
  odevit eval RUN steps=4,8,12,24 solver=euler,heun    one row for each combination
  odevit eval RUN stop=kl:0.005                        each image goes only as far as it needs

odevit VERB --help lists the keys of a verb with their defaults.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Errors of use are one sentence on standard error, not a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
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
        verb = verb_of(name)
        if {"-h", "--help"} & {*rest}:
            verb.help()
        else:
            verb.run(rest)
        return 0
    except (ValueError, ImportError, OSError, DivergedError) as error:
        print(f"odevit {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"odevit {name}: interrupted; a training run goes on with resume=true", file=sys.stderr)
        return 130


def verb_of(name: str) -> Verb:
    """A verb by its name."""
    verb: Verb = getattr(import_module(f"odevit.cli.{HOMES[name]}"), name.upper())
    return verb


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> Any:
        """`train`, `evaluate`, ...: the function of a verb, or what it returns."""
        verb = {"evaluate": "eval", "Evaluation": "eval", "Prediction": "predict"}.get(name, name)
        if verb not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"odevit.cli.{HOMES[verb]}"), name)
