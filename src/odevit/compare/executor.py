"""entry -> run folder: trained or gone on with, measured, and nothing lost when one of them fails."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from odevit.compare.metrics import measure
from odevit.compare.plan import Entry, sentence
from odevit.report.section import to_builtins
from odevit.train.classifier import ClassifierTask
from odevit.train.folder import RECIPE, RECORD, RunFolder
from odevit.train.recipe import Recipe
from odevit.train.runner import run

MEASURES, LOG, WEIGHTS = "measures.json", "log.txt", "model.safetensors"
PATIENCE = 10.0
"""Seconds that a process has to end by itself."""
Work = Callable[..., dict[str, Any]]
"""(entry, quiet=...) -> result."""


def run_all(
    entries: Sequence[Entry], processes: int, work: Work | None = None
) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Each entry with its result, as they come: one after the other, or several processes at a time.

    An entry whose process dies is tried once more when all others are done.

    Args:
        entries: in the order in which they are begun.
        processes: how many are computed at a time.
        work: `(entry, quiet=...) -> result`, a function of a module; `enter` unless given.
    """
    work = work or enter
    if processes == 1:
        yield from ((entry, work(entry)) for entry in entries)
        return
    died: dict[Entry, int] = {}
    for entry, result in computed(entries, processes, work):
        if isinstance(result, int):
            died[entry] = result
        else:
            yield entry, result
    # One at a time: what they most likely died of is the memory that the others took.
    for entry, result in computed(died, 1, work):
        yield entry, {"failure": died_twice(died[entry], result)} if isinstance(result, int) else result


def computed(entries: Iterable[Entry], processes: int, work: Work) -> Iterator[tuple[Entry, dict[str, Any] | int]]:
    """Each entry with its result, or with the exit code of the process that died of it; no process is left behind."""
    left, team = deque(entries), list[Worker]()
    try:
        while left or team:
            while left and len(team) < processes:
                team.append(Worker(work, processes))
                team[-1].begin(left.popleft())
            ready = wait([worker.pipe for worker in team])
            for worker in [worker for worker in team if worker.pipe in ready]:
                entry, result = worker.entry, worker.result()
                if left and not isinstance(result, int):
                    worker.begin(left.popleft())
                else:  # it died, or holds memory that the others can use
                    worker.end()
                    team.remove(worker)
                yield entry, result
    finally:
        for worker in team:
            worker.process.terminate()  # each of them, before the first is waited for
        for worker in team:
            worker.end()


class Worker:
    """A process that computes entries, one after the other: to start it takes longer than to train a small model.

    Args:
        work: what is done with an entry.
        processes: how many share the cores.
    """

    def __init__(self, work: Work, processes: int) -> None:
        # Not forked: neither CUDA nor threads survive that.
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=answer, args=(other_end, work, processes))
        self.process.start()
        other_end.close()  # the process alone holds it now, and the pipe ends when that does

    def begin(self, entry: Entry) -> None:
        self.entry = entry
        with suppress(OSError):  # a process that is gone is noticed when its result is read
            self.pipe.send(entry)

    def result(self) -> dict[str, Any] | int:
        """What has come of the entry, or the exit code of the process that died of it; minus n is signal n."""
        try:
            found: dict[str, Any] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return self.process.exitcode or 0
        return found

    def end(self) -> None:
        """Nothing is left to do: the process ends by itself, or is killed."""
        self.pipe.close()
        self.process.join(PATIENCE)
        self.process.kill()
        self.process.join()


def answer(pipe: Connection, work: Work, processes: int) -> None:
    """The life of a worker's process: an entry comes, its result goes, until nobody is there to ask."""
    # Ctrl-C in a terminal interrupts every process; it is the parent's to hear, who terminates the others once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    Thread(target=leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    share_cores(processes)
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(work(pipe.recv(), quiet=True))


def leave(*_: object) -> None:
    """End a process as an interruption would: what it began is cleaned up, and its log says where it was."""
    raise SystemExit(128 + signal.SIGTERM)


def leave_with(parent: BaseProcess | None) -> None:
    """End with the process that wants the results: to kill that one alone would leave a GPU that is busy for nobody."""
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def died_twice(among: int, alone: int) -> str:
    """What is said of an entry whose process died among others, and then alone, from the two exit codes."""
    first, second = (f"signal {-code}" if code < 0 else f"exit code {code}" for code in (among, alone))
    return (
        f"its process was killed twice ({first}, then {second} with no other beside it), for lack of memory perhaps; "
        "type the command again where there is more"
    )


def share_cores(processes: int) -> None:
    """Leave each process its share of the cores."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))


def enter(entry: Entry, quiet: bool = False) -> dict[str, Any]:
    """Train and measure an entry, as far as that is not done yet; what goes wrong is its result, too."""
    folder = RunFolder(Path())
    try:
        recipe = entry.recipe()
        folder = RunFolder(recipe.folder)
        with logged(folder, quiet):
            if not (folder.path / MEASURES).exists():
                task = trained(recipe, "odevit train " + " ".join(entry.words))
                found = to_builtins(measure(task, entry.images))
                # Written last: an entry with measures is finished.
                folder.register(MEASURES).write_text(json.dumps(found, indent=1) + "\n")
    except Exception as error:  # whatever it is, the others are to be trained
        return {"failure": sentence(error)}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.compiler.reset()  # what was compiled for one system counts against the limit of the next
    return result_of(folder.path)


def result_of(folder: Path) -> dict[str, Any]:
    """What is known of a finished entry: the figures of its record, and what was measured."""
    record, found = (json.loads((folder / name).read_text()) for name in (RECORD, MEASURES))
    kept = ("params", "top1", "seconds", "epochs", "device", "versions")
    validation = record["seeds"][0]["validation"]
    return {"failure": None, "validation": validation, **{key: record[key] for key in kept}, "measured": found}


def trained(recipe: Recipe, command: str) -> ClassifierTask:
    """The finished run of a recipe: found, gone on with, or made."""
    folder = recipe.folder
    if not (folder / RECORD).exists():
        task = ClassifierTask(replace(recipe, resume=(folder / RECIPE).exists()))
        run(task, command)
        return task
    return finished(recipe)


def finished(recipe: Recipe) -> ClassifierTask:
    """The task of a run that is over, with its weights."""
    task = begun(recipe)
    load_model(task.network, str(recipe.folder / WEIGHTS), device=str(task.process.device))
    return task


def begun(recipe: Recipe) -> ClassifierTask:
    """The task of a run as it is before its first update."""
    task = ClassifierTask(recipe)
    task.recipe = recipe.on(task.process.device.type)
    task.build()
    network: nn.Module = task.network
    network.to(task.process.device).eval()
    return task


@contextmanager
def logged(folder: RunFolder, quiet: bool) -> Iterator[None]:
    """What a run prints goes into its log, bars on a terminal excepted, and the traceback of what stops it."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with (folder.path / LOG).open("a") as log, ExitStack() as stack:
        stack.enter_context(redirect_stdout(log))
        if quiet or not sys.stderr.isatty():
            stack.enter_context(redirect_stderr(log))
        try:
            yield
        except BaseException:
            traceback.print_exc(file=log)
            raise
        finally:
            folder.register(LOG)
