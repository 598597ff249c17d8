"""`odevit train` in a process of its own, without the command line around it.

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

from odevit.train import train_recipe
from odevit.train.compose import compose_recipe

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def word(key, value):
    text = str(value).replace("'", "") if isinstance(value, list) else str(value)
    return f"{key}={text.lower() if isinstance(value, bool) else text}"


def words(settings):
    """{"train.epochs": 1} -> ["train.epochs=1"]."""
    return [word(key, value) for key, value in settings.items()]


def begin(log, arguments, **environment):
    """A process that trains; what it says is in the file `log`."""
    process = SERVER.Process(target=_train, args=(str(log), arguments, environment))
    process.start()
    return process


def finish(processes, log):
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes), log.read_text()


def together(log, arguments, number):
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
    return [begin(log, arguments, **world, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(number)]


def _train(log, arguments, environment):
    os.environ |= environment
    torch.set_num_threads(1)
    with open(log, "a") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            train_recipe(compose_recipe(arguments), command="odevit train " + " ".join(arguments))
        except Exception:
            traceback.print_exc()
            sys.exit(1)
