"""planned run -> result: trained or resumed, then measured, in one process or several; a failure is a result too."""

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

from odevit.compare.metrics import measure
from odevit.compare.plan import PlannedRun, one_line
from odevit.report.section import to_builtins
from odevit.train.classifier import ClassifierTask
from odevit.train.folder import RECIPE, RECORD, RunFolder
from odevit.train.recipe import Recipe
from odevit.train.runner import run

MEASURES, LOG, WEIGHTS = "measures.json", "log.txt", "model.safetensors"
TIMEOUT = 10.0
"""Seconds in which a process must end by itself."""
Result = dict[str, Any]
Work = Callable[..., Result]
"""(planned run, quiet=...) -> result."""


def run_all(
    runs: Sequence[PlannedRun], processes: int, work: Work | None = None
) -> Iterator[tuple[PlannedRun, Result]]:
    """Each run with its result, in the order in which they finish.

    A run whose process dies is tried once more, alone, after all others: most likely there was not enough memory for
    several at a time.

    Args:
        work: `(run, quiet=...) -> result`, a function of a module; `train_and_measure` unless given.
    """
    work = work or train_and_measure
    if processes == 1:
        yield from ((planned, work(planned)) for planned in runs)
        return
    died: dict[PlannedRun, int] = {}
    for planned, result in _in_processes(runs, processes, work):
        if isinstance(result, int):
            died[planned] = result
        else:
            yield planned, result
    for planned, result in _in_processes(died, 1, work):
        yield planned, {"failure": died_twice(died[planned], result)} if isinstance(result, int) else result


def _in_processes(runs: Iterable[PlannedRun], processes: int, work: Work) -> Iterator[tuple[PlannedRun, Result | int]]:
    """Each run with its result, or with the exit code of the process that died of it; no process is left behind."""
    waiting, workers = deque(runs), dict[Any, tuple[BaseProcess, PlannedRun]]()

    def begin(process: BaseProcess, pipe: Any) -> None:
        workers[pipe] = process, waiting.popleft()
        with suppress(OSError):  # that the process is gone is noticed when its result is read
            pipe.send(workers[pipe][1])

    try:
        while waiting or workers:
            while waiting and len(workers) < processes:
                begin(*start_process(work, processes))
            for pipe in wait([*workers]):
                process, planned = workers[pipe]
                result = receive(pipe, process)
                if waiting and not isinstance(result, int):
                    begin(process, pipe)
                else:  # it died, or holds memory that the others can use
                    end(pipe, process)
                    del workers[pipe]
                yield planned, result
    finally:
        for process, _ in workers.values():
            process.terminate()  # each of them, before the first is waited for
        for pipe, (process, _) in workers.items():
            end(pipe, process)


def start_process(work: Work, processes: int) -> tuple[BaseProcess, Connection]:
    """A process that computes one run after the other, since starting it takes longer than training a small model."""
    context = multiprocessing.get_context("spawn")  # neither CUDA nor threads survive a fork
    pipe, other_end = context.Pipe()
    process = context.Process(target=serve_runs, args=(other_end, work, processes))
    process.start()
    other_end.close()  # so that the pipe ends when the process does
    return process, pipe


def receive(pipe: Any, process: BaseProcess) -> Result | int:
    """The result, or the exit code of a process that died; -n is signal n."""
    try:
        found: Result = pipe.recv()
    except (EOFError, OSError):
        process.join()
        return process.exitcode or 0
    return found


def end(pipe: Any, process: BaseProcess) -> None:
    pipe.close()
    process.join(TIMEOUT)
    process.kill()
    process.join()


def serve_runs(pipe: Connection, work: Work, processes: int) -> None:
    """The main function of a worker's process: receive runs, send results, until the pipe is closed."""

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)  # cleans up as an interruption does

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    # Ctrl-C interrupts every process of a terminal; the parent handles it and terminates the others once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminate)
    Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(work(pipe.recv(), quiet=True))


def died_twice(in_parallel: int, alone: int) -> str:
    """The failure of a run whose process died both times, from the two exit codes."""
    first, second = (f"signal {-code}" if code < 0 else f"exit code {code}" for code in (in_parallel, alone))
    return (
        f"its process was killed twice ({first}, then {second} when it ran alone), perhaps for lack of memory; run the "
        "command again on a machine with more"
    )


def train_and_measure(planned: PlannedRun, quiet: bool = False) -> Result:
    """Do what is not done yet of a run. An exception becomes its `failure`."""
    folder = RunFolder(Path())
    try:
        recipe = planned.recipe()
        folder = RunFolder(recipe.folder)
        with logged(folder, quiet):
            if not (folder.path / MEASURES).exists():
                task = trained(recipe, "odevit train " + " ".join(planned.words))
                measured = to_builtins(measure(task, planned.images))
                # Written last: a run with measures is finished.
                folder.register(MEASURES).write_text(json.dumps(measured, indent=1) + "\n")
    except Exception as error:  # of any kind: the other runs go on
        return {"failure": one_line(error)}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.compiler.reset()  # the compiler's limit of variants counts across systems
    return read_result(folder.path)


def read_result(folder: Path) -> Result:
    """The result of a finished run: the figures of its record, and its measures."""
    record, measured = (json.loads((folder / name).read_text()) for name in (RECORD, MEASURES))
    figures = {key: record[key] for key in ("params", "top1", "seconds", "epochs", "device", "versions")}
    return {"failure": None, "validation": record["seeds"][0]["validation"], **figures, "measured": measured}


def trained(recipe: Recipe, command: str) -> ClassifierTask:
    """The task of a recipe after its training, which is resumed or begun unless it is finished."""
    if (recipe.folder / RECORD).exists():
        return finished(recipe)
    task = ClassifierTask(replace(recipe, resume=(recipe.folder / RECIPE).exists()))
    run(task, command)
    return task


def finished(recipe: Recipe) -> ClassifierTask:
    """The task of a finished run, with its weights."""
    task = ClassifierTask(recipe)
    device = task.process.device
    task.recipe = recipe.on(device.type)
    task.build()
    task.network.to(device).eval()  # type: ignore[arg-type]
    load_model(task.network, str(recipe.folder / WEIGHTS), device=str(device))
    return task


@contextmanager
def logged(folder: RunFolder, quiet: bool) -> Iterator[None]:
    """Write what a run prints, and the traceback of an exception, into its log; progress bars stay on a terminal."""
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
