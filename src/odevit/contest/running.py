"""entry -> run folder: trained or gone on with, measured, and nothing lost when one of them fails."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from odevit.contest.entries import Entry, sentence
from odevit.contest.qualities import measure
from odevit.report.section import plain
from odevit.train.classifier import ClassifierTask
from odevit.train.folder import RECIPE, RECORD, RunFolder
from odevit.train.life import run
from odevit.train.recipe import Recipe

MEASURES, LOG = "measures.json", "log.txt"


def run_all(entries: Sequence[Entry], processes: int) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Each entry with its result, as they come: one after the other, or several processes at a time."""
    if processes == 1:
        yield from ((entry, enter(entry)) for entry in entries)
        return
    # Not forked: neither CUDA nor threads survive that.
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=share_cores, initargs=(processes,)
    )
    waiting = {pool.submit(enter, entry, quiet=True): entry for entry in entries}
    try:
        for done in as_completed(waiting):
            try:
                yield waiting[done], done.result()
            except BrokenProcessPool:
                yield waiting[done], {"failure": "a process was killed, for lack of memory perhaps; type it again"}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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
                found = plain(measure(task, entry.images))
                # Written last: an entry with measures is finished.
                folder.own(MEASURES).write_text(json.dumps(found, indent=1) + "\n")
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
    task = ClassifierTask(recipe)
    task.recipe = recipe.on(task.place.device.type)
    task.build()
    load_model(task.network, str(recipe.folder / "model.safetensors"), device="cpu")
    network: nn.Module = task.network
    network.to(task.place.device).eval()
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
            folder.own(LOG)
