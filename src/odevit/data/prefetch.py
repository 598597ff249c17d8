"""batch b + 1 is made on a side stream while the model works on batch b."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

Batch = dict[str, Tensor]


def prefetched(make: Callable[[int], Batch], numbers: Iterable[int], device: torch.device) -> Iterator[Batch]:
    """make(b) for each b, one ahead, on a CUDA stream of its own. The host never waits."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # the images were put there by the current stream
    ahead: tuple[Batch, torch.cuda.Event] | None = None
    for number in numbers:
        with torch.cuda.stream(side):
            made = make(number)
            ready = side.record_event()
        if ahead is not None:
            yield _hand_over(*ahead, device)
        ahead = (made, ready)
    if ahead is not None:
        yield _hand_over(*ahead, device)


def _hand_over(batch: Batch, ready: torch.cuda.Event, device: torch.device) -> Batch:
    current = torch.cuda.current_stream(device)
    current.wait_event(ready)
    for tensor in batch.values():
        # Memory belongs to the stream that made it: tell the allocator who else reads it.
        tensor.record_stream(current)
    return batch
