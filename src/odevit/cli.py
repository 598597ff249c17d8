"""odevit VERB key=value ...: each verb is a function of `odevit.verbs` with the same arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from odevit.errors import unknown_name

HELP = """odevit makes depth continuous: Vision Transformers as ordinary differential equations.

  odevit train [key=value ...]               train a model; without arguments, on digits in about a minute
      experiment=fast/cifar10                a recipe (experiment=? lists them)
      data=NAME|FOLDER|HUB/ID                what to learn from
      model.leak=0 train.epochs=10 seed=1    any key of the recipe
      out=FOLDER resume=true overwrite=true  where, and what to do when something is there
      --multirun seed=0,1,2                  several runs, through Hydra and its launchers
  odevit distill [key=value ...]             turn a ViT into an equation, without labels; by default on digits
      teacher=FOLDER|HUB/ID data=...         whom and on what
      student.steps=24 objective.jasmin=1    any key of the recipe
  odevit eval RUN [key=value ...]            accuracy, NFE and time of a run
      steps=4,8,12,24 solver=euler,heun,rk4 horizon=6,12 data= split=test device=auto limit= cache= out=FILE.json
      stop=kl:0.005,bound                    each image stops by itself: velocity, kl or bound, with a tolerance
  odevit analyze RUN [key=value ...]         how stable a run is: figures, numbers and a verdict on one page
      data= split=test limit=1000 out=FOLDER device=auto cache= seed=0
  odevit explore IMAGE... [key=value ...]    films of the attention over integration time, as GIF (and MP4 with ffmpeg)
      model=RUN out=FOLDER steps= horizon= solver= seconds=6
  odevit predict IMAGE... [key=value ...]    classify images with the bundled model, or model=RUN
      top=3 solver= steps= horizon=
  odevit info                                versions, devices, and everything that has a name
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Errors of use are one sentence on standard error, not a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        print(unknown_name("verb", verb, VERBS) + " See odevit --help", file=sys.stderr)
        return 2
    if any(word in ("-h", "--help") for word in rest):
        print(HELP, end="")
        return 0
    from transformers.utils import logging

    from odevit.train.callbacks import DivergedError

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # a bar in a log file is a thousand lines
    try:
        return VERBS[verb](rest)
    except (ValueError, ImportError, OSError, DivergedError) as error:
        print(f"odevit {verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"odevit {verb}: interrupted; a training run goes on with resume=true", file=sys.stderr)
        return 130


def _train(words: list[str]) -> int:
    if "experiment=?" in words:
        from odevit.train.compose import options

        print("\n".join(sorted(options("experiment"))))
        return 0
    if any(word in ("-m", "--multirun") for word in words):
        from odevit.train.sweep import sweep

        sweep(words)
        return 0
    from odevit import verbs

    verbs.train(words)
    return 0


def _distill(words: list[str]) -> int:
    from rich.table import Table

    from odevit import verbs
    from odevit.distill.run import comparison

    folder = verbs.distill(words)
    table = Table(box=None, header_style="bold")
    for column in ("", "parameters", "NFE", "ms/image", "top-1", "agreement"):
        table.add_column(column, justify="right" if column else "left")
    for row in comparison(folder):
        agreement = "" if row["agreement"] is None else f"{row['agreement']:.2%}"
        milliseconds = f"{row['milliseconds']:.3f}"
        table.add_row(
            row["model"], f"{row['params']:,}", str(row["nfe"]), milliseconds, f"{row['top1']:.2%}", agreement
        )
    _show(table)
    return 0


def _eval(words: list[str]) -> int:
    from rich.table import Table

    from odevit import verbs

    runs, settings = _split(words, verbs.evaluate)
    if len(runs) != 1:
        raise ValueError(f"eval takes one run, {len(runs)} were given ({' '.join(runs)}); odevit eval RUN steps=4,8")
    table = Table(box=None, header_style="bold")
    for column in ("solver", "steps", "horizon", "stop", "top-1", "top-3", "top-5", "NFE", "ms/image"):
        table.add_column(column, justify="left" if column in ("solver", "stop") else "right")
    for each in verbs.evaluate(runs[0], **settings):
        score = each.score
        table.add_row(
            each.solver,
            str(each.steps),
            f"{each.horizon:g}",
            each.stop,
            *(f"{100 * value:.2f}%" for value in (score.top1, score.top3, score.top5)),
            f"{score.nfe:.4g}",
            f"{score.milliseconds:.3f}",
        )
    _show(table)
    return 0


def _analyze(words: list[str]) -> int:
    from odevit import verbs
    from odevit.report import analyse

    runs, settings = _split(words, analyse)
    if len(runs) != 1:
        raise ValueError(f"analyze takes one run, {len(runs)} were given ({' '.join(runs)}); odevit analyze RUN")
    print(verbs.analyze(runs[0], **settings))
    return 0


def _explore(words: list[str]) -> int:
    from odevit import verbs
    from odevit.explore import explore

    images, settings = _split(words, explore)
    if not images:
        raise ValueError("explore takes one image or more; odevit explore cat.png")
    for path in verbs.explore(images, **settings):
        print(path)
    return 0


def _predict(words: list[str]) -> int:
    from odevit import verbs

    images, settings = _split(words, verbs.predict)
    if not images:
        raise ValueError("predict takes one image or more; odevit predict cat.png")
    for each in verbs.predict(images, **settings):
        print(each.image + "\t" + "  ".join(f"{label} {100 * share:.1f}%" for label, share in each.labels))
    return 0


def _info(words: list[str]) -> int:
    from odevit import verbs

    for key, value in verbs.info().items():
        if isinstance(value, dict):
            lines = [
                f"{name}: {each:,}" if isinstance(each, int) else f"{name}: {each}" for name, each in value.items()
            ]
            print(f"{key}:" + "".join(f"\n  {line}" for line in lines or ["none"]))
        else:
            print(f"{key}: {', '.join(value)}")
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "distill": _distill,
    "eval": _eval,
    "analyze": _analyze,
    "explore": _explore,
    "predict": _predict,
    "info": _info,
}


def _show(table: Any) -> None:
    """Print a table; into a file or a pipe at its full width, since nobody can widen those."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _split(words: list[str], function: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """Positional words, and key=value words as the function's keyword arguments."""
    known = [name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY]
    positional: list[str] = []
    settings: dict[str, Any] = {}
    problems: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or "/" in key:
            positional.append(word)
        elif key in known:
            settings[key] = _value(value)
        else:
            problems.append(unknown_name("key", key, known))
    if problems:
        from odevit.errors import ConfigError

        raise ConfigError("the command line", problems)
    return positional, settings


def _value(text: str) -> Any:
    """A number, a word, or a list of them separated by commas."""
    if "," in text:
        return [_value(part) for part in text.split(",") if part]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    sys.exit(main())
