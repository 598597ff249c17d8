"""u = hash(seed, epoch, sample, stream) / 2^64: random numbers as a pure function of integers.

The state of a generator depends on earlier draws: on the batch size, the rank, and where a run was interrupted. A hash
has no state. The numbers of a sample depend on (seed, epoch, sample) only, so several processes, other batch sizes and
resumed runs have the same augmentation, and nothing needs to be saved.

The hash is the output function of SplitMix64 (Steele, Lea, Flood, 2014) on int64 tensors, whose arithmetic wraps modulo
2^64, or on integers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 divided by the golden ratio, odd: steps that visit every word
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))

Word = Any  # an integer or a tensor of them, int64

ORDER_STREAM = -1
"""The stream that orders the samples of an epoch; augmentations use the streams from 0 on."""

SPLIT_STREAM = -2
"""The stream that decides which samples are held out."""


def uniforms(seed: int, epoch: int | Tensor, index: Tensor, count: int) -> Tensor:
    """u[s] in [0, 1), float32 [count, B]: `count` numbers for every sample position in `index` (int64 [B]).

    In a compiled function or a captured graph, pass `epoch` as an int64 tensor []: an integer would be a constant, and
    the next epoch would need another graph.
    """
    # Exclusive or, not a multiple of the step: compilers fold a multiple of arange into 32-bit indexing.
    keys = _mix(torch.arange(count, dtype=torch.int64, device=index.device) ^ _epoch_key(seed, epoch))
    words = _mix(keys[:, None] + index[None, :] * _GOLDEN)
    # The top 24 bits fill a float32 mantissa exactly: never 1.0, and no rounding that differs by device.
    return _shift_right(words, 40).to(torch.float32) * 2.0**-24


def permutation(
    seed: int, epoch: int, count: int, *, stream: int = ORDER_STREAM, device: torch.device | str = "cpu"
) -> Tensor:
    """A random order of 0 .. count-1, int64 [count]; the same on every device.

    The hash is a bijection of 64-bit words, so no two keys are equal and sorting them has one answer.
    """
    index = torch.arange(count, dtype=torch.int64, device=device)
    return _mix(index * _GOLDEN + _mix(_epoch_key(seed, epoch) ^ stream)).argsort()


def _epoch_key(seed: int, epoch: Word) -> Word:
    return _mix(_mix(seed + _GOLDEN) + epoch + _GOLDEN)


def _mix(words: Word) -> Word:
    words = _wrapped(words)
    for bits, factor in _ROUNDS:
        words = _wrapped((words ^ _shift_right(words, bits)) * factor)
    return words ^ _shift_right(words, 31)


def _shift_right(words: Word, bits: int) -> Word:
    # Shifts of signed words drag the sign along; the mask makes it the shift of an unsigned word.
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _wrapped(words: Word) -> Word:
    """Modulo 2^64, from -2^63 to 2^63 - 1, as tensors are on their own."""
    return words if isinstance(words, Tensor) else (words + 2**63) % 2**64 - 2**63
