"""Registries: name -> class, as in `attention="dot"`. A new variant is one decorated class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from odevit.errors import unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from name to class; an unknown name raises an error that lists the known ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Register the decorated class under `name`."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"the {self.kind} {name!r} is registered twice; choose another name")
            self._entries[name] = entry
            return entry

        return add

    def name_of(self, entry: object) -> str:
        """The name of a registered class; the class's own name if it is not registered."""
        return next((name for name, known in self._entries.items() if known is entry), getattr(entry, "__name__", ""))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Remove at the end of this block what was registered inside it."""
        entries = dict(self._entries)
        try:
            yield
        finally:
            self._entries = entries

    def problem(self, name: object) -> str | None:
        """The error for an unknown name; None for a known one."""
        return None if name in self._entries else unknown_name(self.kind, name, self._entries)

    def __getitem__(self, name: str) -> T:
        problem = self.problem(name)
        if problem is not None:
            raise ValueError(problem)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
