"""odevit serve: the explorer as a Gradio page on this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from odevit.errors import ConfigError, integer
from odevit.explorer.catalog import ModelCatalog
from odevit.explorer.explorer import Explorer

FRONT = Path(__file__).parent / "front"
FONTS = ["system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"]
MONOSPACE = ["ui-monospace", "Menlo", "Consolas", "monospace"]
REQUESTS = ("options", "upload", "trace", "stability", "perturb", "film", "figures")
"""Methods of the explorer that the page may call."""


def serve(
    *,
    model: str | os.PathLike[str] = "cifar10",
    port: int = 7860,
    host: str = "127.0.0.1",
) -> None:
    """Show attention, class probabilities and states over integration time in the browser, until interrupted.

    The page lists the bundled models and those in checkpoints/ and runs/ of the current folder. Only this machine can
    reach it unless `host` is changed, and it sends no request to other machines.

    Args:
        model: the model to show first: a bundled model, or the folder of a run.
        port: the port of the page; 0 takes a free one.
        host: the address to listen on; 0.0.0.0 makes the page reachable from the whole network.
    """
    problems = integer(0, 65535).problem("port", port)
    if not problems and (problem := port_problem(host, port)):
        problems = [problem]
    if problems:
        raise ConfigError("serve", problems)
    if find_spec("gradio") is None:
        raise ImportError("the explorer needs gradio: pip install 'odevit[web]'")
    explorer = Explorer(ModelCatalog(first=model))
    explorer.catalog.get(os.fspath(model))  # an error here is easier to read than one on the page
    run_server(explorer, host, port)


def run_server(explorer: Explorer, host: str, port: int) -> None:
    """Serve until interrupted."""
    if "OMP_NUM_THREADS" not in os.environ:
        # The server and the browser need cores too, and threads that spin while they wait slow everything down.
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    _, address, _ = launch(explorer, server_name=host, server_port=port or free_port(host), prevent_thread_lock=True)
    print(f"The explorer is at {address} (press Ctrl+C to stop)", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("The explorer has stopped.")


def launch(explorer: Explorer, **options: Any) -> tuple[Any, str, str]:
    """Serve the page with Gradio: no telemetry, no tunnel, no fonts from other servers."""
    import gradio as gr  # an optional dependency, slow to import

    with gr.Blocks(title="odevit explorer", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(
            html_template=(FRONT / "explorer.html").read_text(),
            js_on_load=(FRONT / "explorer.js").read_text(),
            server_functions=[as_function(getattr(explorer, name)) for name in REQUESTS],
            apply_default_css=False,
            elem_id="explorer",
        )
    launched: tuple[Any, str, str] = page.launch(
        theme=gr.themes.Base(font=FONTS, font_mono=MONOSPACE),
        css=(FRONT / "explorer.css").read_text(),
        footer_links=[],
        share=False,
        ssr_mode=False,
        quiet=True,
        run_history=False,
        enable_monitoring=False,
        **options,
    )
    return launched


def as_function(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A bound method as a plain function: Gradio sets attributes on what the page may call."""

    def call(request: Any) -> Any:
        return method(request)

    call.__name__ = method.__name__
    return call


def port_problem(host: str, port: int) -> str | None:
    """Why this host and port cannot be listened on; None if they can."""
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
    """An unused port."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
