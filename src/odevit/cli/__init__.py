"""odevit VERB WORD ... key=value ...: every verb is a Python function with the same arguments.

A new verb is one file beside this one, with a function and a `VERB`, and one line in the table below.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from odevit.errors import unknown_name

if TYPE_CHECKING:
    from odevit.cli.analyzing import analyze as analyze
    from odevit.cli.distilling import distill as distill
    from odevit.cli.evaluating import Evaluation as Evaluation
    from odevit.cli.evaluating import evaluate as evaluate
    from odevit.cli.exploring import explore as explore
    from odevit.cli.informing import info as info
    from odevit.cli.predicting import Prediction as Prediction
    from odevit.cli.predicting import predict as predict
    from odevit.cli.training import train as train


class Entry(NamedTuple):
    """A verb's module, the names that Python imports from it, and how the overview presents it."""

    module: str
    names: str
    usage: str
    summary: str


ENTRIES = {
    "train": Entry("training", "train", "", "train a model; without arguments, on digits in about a minute"),
    "distill": Entry("distilling", "distill", "", "turn a ViT into an equation, without labels; by default on digits"),
    "eval": Entry("evaluating", "evaluate Evaluation", "RUN", "accuracy, NFE and time, for several ways to integrate"),
    "analyze": Entry("analyzing", "analyze", "RUN", "how stable a run is: figures, numbers, a verdict on one page"),
    "explore": Entry("exploring", "explore", "IMAGE...", "films of the attention over integration time: GIF, MP4"),
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
        print(_overview(), end="")
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
        verb = import_module(f"odevit.cli.{ENTRIES[name].module}").VERB
        if any(word in ("-h", "--help") for word in rest):
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


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> Any:
        """`train`, `evaluate`, ...: a verb loads what it needs when it is first asked for, which keeps --help fast."""
        for entry in ENTRIES.values():
            if name in entry.names.split():
                return getattr(import_module(f"odevit.cli.{entry.module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _overview() -> str:
    usages = {f"  odevit {name} {entry.usage}".rstrip(): entry.summary for name, entry in ENTRIES.items()}
    width = max(map(len, usages)) + 3
    return OVERVIEW.format(verbs="\n".join(f"{usage:<{width}}{summary}" for usage, summary in usages.items()))
