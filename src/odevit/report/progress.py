"""stage ... seconds: what is being measured, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status


class Progress:
    """One line a stage, with its seconds; on a terminal it turns while the stage lasts."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.seconds: dict[str, float] = {}
        self.started, self.processor = time.perf_counter(), time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Say what begins, and how long it took."""
        began = time.perf_counter()
        waiting = Status(f"{name} ...", console=self.console) if sys.stderr.isatty() else None
        if waiting is not None:
            waiting.start()
        try:
            yield
        finally:
            if waiting is not None:
                waiting.stop()
        self.seconds[name] = time.perf_counter() - began
        self.console.print(f"{name}: {self.seconds[name]:.1f} s")

    def numbers(self) -> dict[str, object]:
        """Seconds of every stage, of all of them, and of the processor."""
        return {
            "stages": self.seconds,
            "total": time.perf_counter() - self.started,
            "processor": time.process_time() - self.processor,
        }
