"""What a solve keeps besides its last state. Nothing, unless asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Save:
    """What to keep.

    Args:
        steps: the steps whose states are kept, 0 being the start and N the end of N steps; "all" keeps N + 1 states.
        attentions: whether every attention map is kept, one for each evaluation; turns fused attention off.
        detach: whether what is kept is cut off from the graph.
    """

    steps: tuple[int, ...] | str = ()
    attentions: bool = False
    detach: bool = False

    @classmethod
    def parse(cls, save: Save | str | Iterable[int] | None) -> Save:
        """`None`, "all", a sequence of step numbers, or a `Save`."""
        if isinstance(save, Save):
            return save
        if save is None:
            return cls()
        if isinstance(save, str):
            if save != "all":
                raise ValueError(f"save={save!r}; expected 'all', a sequence of step numbers, or a Save(...)")
            return cls(steps="all")
        return cls(steps=tuple(save))

    def chosen(self, steps: int) -> frozenset[int]:
        """The step numbers to keep out of 0..`steps`."""
        if isinstance(self.steps, str):
            return frozenset(range(steps + 1))
        outside = [step for step in self.steps if not 0 <= step <= steps]
        if outside:
            raise ValueError(
                f"save asks for the steps {outside}, but this solve has steps 0 to {steps}; "
                "pass numbers in that range or raise `steps`"
            )
        return frozenset(self.steps)
