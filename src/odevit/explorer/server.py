"""odevit serve: start the explorer on this machine."""

from __future__ import annotations

import os
import socket
import time
from importlib.util import find_spec

import torch

from odevit.errors import ConfigError, integer
from odevit.explorer.catalog import ModelCatalog
from odevit.explorer.explorer import Explorer


def serve(
    *,
    model: str | os.PathLike[str] = "cifar10",
    port: int = 7860,
    host: str = "127.0.0.1",
) -> None:
    """Show images on their way through continuous depth, in the browser, until interrupted.

    The page lists the bundled models and those in checkpoints/ and runs/ of the current folder. It is served to this
    machine alone unless `host` says otherwise, and asks nothing of the network.

    Args:
        model: what to begin with: a bundled model, or the folder of a run.
        port: where the page is served; 0 takes a free one.
        host: the address that is listened to; 0.0.0.0 lets the whole network in.
    """
    problems = integer(0, 65535).problem("port", port)
    if not problems and (problem := port_problem(host, port)):
        problems = [problem]
    if problems:
        raise ConfigError("serve", problems)
    if find_spec("gradio") is None:
        raise ImportError("the explorer needs gradio: pip install 'odevit[web]'")
    explorer = Explorer(ModelCatalog(first=model))
    explorer.shelf.take(os.fspath(model))  # what cannot be shown is better said now than in the page
    begin(explorer, host, port)


def begin(explorer: Explorer, host: str, port: int) -> None:
    """Serve until interrupted."""
    from odevit.explorer.gradio_page import launch

    if "OMP_NUM_THREADS" not in os.environ:
        # The server and the browser need cores as well, and threads that wait for each other by spinning are slow.
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    _, address, _ = launch(explorer, server_name=host, server_port=port or free_port(host), prevent_thread_lock=True)
    print(f"The explorer is at {address} (Ctrl+C ends it)", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("The explorer has ended.")


def port_problem(host: str, port: int) -> str | None:
    """Why the page cannot be served there, as a sentence."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"host={host!r} port={port} cannot be listened to ({reason}); port=0 takes a free port"
    return None


def free_port(host: str) -> int:
    """A port that nobody listens to."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
