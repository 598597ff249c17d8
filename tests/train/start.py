"""`odevit train` or `odevit distill` in a process of its own, without the command line around it.

Importing torch and transformers takes longer than a test trains. A server imports them once and forks for every run: a
process like any other, which can be killed or be one of two, begun within a blink.
"""

import os
import socket
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context

import torch

from odevit.distill.distill_task import distill_recipe
from odevit.distill.distillation import compose_distillation
from odevit.train.classifier import train_recipe
from odevit.train.compose import compose_recipe

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def word(key, value):
    text = str(value).replace("'", "") if isinstance(value, list) else str(value)
    return f"{key}={text.lower() if isinstance(value, bool) else text}"


def words(settings):
    """{"train.epochs": 1} -> ["train.epochs=1"]."""
    return [word(key, value) for key, value in settings.items()]


def begin(log, arguments, verb="train", **environment):
    """A process that trains; what it says is in the file `log`."""
    process = SERVER.Process(target=_train, args=(str(log), arguments, verb, environment))
    process.start()
    return process


def finish(processes, log):
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes), log.read_text()


def together(log, arguments, number, verb="train"):
    """As many processes as `torchrun --nproc-per-node NUMBER` starts, in the same environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {
        "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return [begin(log, arguments, verb, **world, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(number)]


VERBS = {"train": (train_recipe, compose_recipe), "distill": (distill_recipe, compose_distillation)}


def _train(log, arguments, verb, environment):
    os.environ |= environment
    torch.set_num_threads(1)
    with open(log, "a") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            run, compose = VERBS[verb]
            run(compose(arguments), command=f"odevit {verb} {' '.join(arguments)}")
        except Exception:
            traceback.print_exc()
            sys.exit(1)
