"""odevit VERB WORD ... key=value ...: every verb is a Python function with the same arguments.

A new verb NAME is a function and a `Verb` called NAME in a file beside this one, and one line in the table below.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from odevit.errors import unknown_name

if TYPE_CHECKING:
    from odevit.cli.evaluating import Evaluation as Evaluation
    from odevit.cli.evaluating import evaluate as evaluate
    from odevit.cli.informing import info as info
    from odevit.cli.picturing import analyze as analyze
    from odevit.cli.picturing import explore as explore
    from odevit.cli.predicting import Prediction as Prediction
    from odevit.cli.predicting import predict as predict
    from odevit.cli.recipes import distill as distill
    from odevit.cli.recipes import train as train
    from odevit.cli.words import Verb


class Entry(NamedTuple):
    """A verb's module, the names that Python imports from it, and how the overview presents it."""

    module: str
    names: str
    usage: str
    summary: str


ENTRIES = {
    "train": Entry("recipes", "train", "", "train a model; without arguments, on digits in about a minute"),
    "distill": Entry("recipes", "distill", "", "turn a ViT into an equation, without labels; by default on digits"),
    "eval": Entry("evaluating", "evaluate Evaluation", "RUN", "accuracy, NFE and time, for several ways to integrate"),
    "analyze": Entry("picturing", "analyze", "RUN", "how stable a run is: figures, numbers, a verdict on one page"),
    "explore": Entry("picturing", "explore", "IMAGE...", "films of the attention over integration time: GIF, MP4"),
    "predict": Entry(
        "predicting", "predict Prediction", "IMAGE...", "classify images with the bundled model or model=RUN"
    ),
    "info": Entry("informing", "info", "", "versions, devices, and everything that has a name"),
}

OVERVIEW = """odevit makes depth continuous: Vision Transformers as ordinary differential equations.

{verbs}

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
        verbs = [f"  {f'odevit {name} {entry.usage}':<26}{entry.summary}" for name, entry in ENTRIES.items()]
        print(OVERVIEW.format(verbs="\n".join(verbs)), end="")
        return 0
    name, *rest = words
    if name not in ENTRIES:
        print(unknown_name("verb", name, ENTRIES) + " See odevit --help", file=sys.stderr)
        return 2
    from transformers.utils import logging

    from odevit.train.callbacks import DivergedError

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # in a log file, a progress bar is a thousand lines
    try:
        verb = verb_of(name)
        if {"-h", "--help"} & {*rest}:
            print(verb.help(), end="")
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
    """A verb by its name. It loads what it needs only now, which keeps --help fast."""
    verb: Verb = getattr(import_module(f"odevit.cli.{ENTRIES[name].module}"), name.upper())
    return verb


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> Any:
        """`train`, `evaluate`, ...: as late as `verb_of`."""
        for entry in ENTRIES.values():
            if name in entry.names.split():
                return getattr(import_module(f"odevit.cli.{entry.module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
