"""u = hash(seed, epoch, sample, stream) / 2^64: random numbers that are a pure function of integers.

By hand, because a generator has a state, and the state depends on who drew before: on the batch size, the rank,
where a run was interrupted. A hash has none. The number a sample gets is decided by (seed, epoch, sample) alone,
so two processes, two batch sizes or a resumed run see the same augmentation without saving anything.

The hash is the output function of SplitMix64 (Steele, Lea, Flood, 2014), evaluated on int64 tensors whose
arithmetic wraps modulo 2^64.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, odd: steps that visit every word
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

ORDER_STREAM = -1
"""The stream that orders the samples of an epoch; augmentations use the streams from 0 on."""

SPLIT_STREAM = -2
"""The stream that decides which samples are held out."""


def uniforms(seed: int, epoch: int | Tensor, index: Tensor, count: int) -> Tensor:
    """u[s] in [0, 1), float32 [count, B]: `count` numbers for every sample position in `index` (int64 [B]).

    In a compiled function or a captured graph pass `epoch` as an int64 tensor []: an integer would be a constant
    there, and the next epoch would need another graph.
    """
    if isinstance(epoch, Tensor):
        key: int | Tensor = _mix(epoch + _signed(_mix_integer(seed + _GOLDEN) + _GOLDEN))
    else:
        key = _signed(_epoch_key(seed, epoch))
    # Exclusive or, not a multiple of the step: compilers fold a multiple of arange into 32-bit indexing.
    keys = _mix(torch.arange(count, dtype=torch.int64, device=index.device) ^ key)
    words = _mix(keys[:, None] + index[None, :] * _signed(_GOLDEN))
    # The top 24 bits fill a float32 mantissa exactly: never 1.0, and no rounding that differs by device.
    return _shift_right(words, 40).to(torch.float32) * 2.0**-24


def permutation(
    seed: int, epoch: int, count: int, *, stream: int = ORDER_STREAM, device: torch.device | str = "cpu"
) -> Tensor:
    """A random order of 0 .. count-1, int64 [count]; the same on every device.

    The hash is a bijection of 64-bit words, so no two keys are equal and sorting them has one answer.
    """
    index = torch.arange(count, dtype=torch.int64, device=device)
    key = _mix_integer(_epoch_key(seed, epoch) ^ (stream % _WORD))
    return _mix(index * _signed(_GOLDEN) + _signed(key)).argsort()


def _epoch_key(seed: int, epoch: int) -> int:
    return _mix_integer(_mix_integer(seed + _GOLDEN) + epoch + _GOLDEN)


def _mix(words: Tensor) -> Tensor:
    words = (words ^ _shift_right(words, 30)) * _signed(_FIRST)
    words = (words ^ _shift_right(words, 27)) * _signed(_SECOND)
    return words ^ _shift_right(words, 31)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    # int64 shifts drag the sign along; the mask makes it the shift of an unsigned word.
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mix_integer(word: int) -> int:
    word %= _WORD
    word = ((word ^ (word >> 30)) * _FIRST) % _WORD
    word = ((word ^ (word >> 27)) * _SECOND) % _WORD
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word
