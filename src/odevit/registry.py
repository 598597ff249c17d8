"""Names for things: `attention="dot"`, `solver="heun"`. A new variant is one decorated class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from odevit.errors import unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from name to class that, asked for an unknown name, says which ones it knows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Enter the decorated class under `name`."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"the {self.kind} {name!r} is registered twice; choose another name")
            self._entries[name] = entry
            return entry

        return enter

    def name_of(self, entry: object) -> str:
        """The name that `entry` is registered under; the name of its class when it is not."""
        return next((name for name, known in self._entries.items() if known is entry), getattr(entry, "__name__", ""))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Forget, at the end of this block, what was registered inside it."""
        entries = dict(self._entries)
        try:
            yield
        finally:
            self._entries = entries

    def problem(self, name: object) -> str | None:
        """What is wrong with `name` as a sentence, or None when it is known."""
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
