"""digits: 1,797 handwritten digits of 8x8 grey levels 0..16, part of scikit-learn, so no download.

The small default on which everything can be tried in seconds. Levels become 0..255 and the one channel is
repeated to three, so that standard RGB image processors and pipelines see the same pixels.
"""

from __future__ import annotations

import numpy as np
import torch

from odevit.data.records import ArrayRecords, ChosenRecords, Source
from odevit.data.split import stratified_split

_TEST_FRACTION = 0.2
_TEST_SEED = 0  # fixed: scikit-learn gives no test part, and it must be the same one for everybody


def digits_source() -> Source:
    """The digits with a fixed, stratified fifth of them as the test part."""
    from sklearn.datasets import load_digits

    found = load_digits()
    levels = np.rint(found.images * (255 / 16)).astype(np.uint8)
    records = ArrayRecords(levels, torch.from_numpy(found.target.astype(np.int64)))
    train, test = stratified_split(records.labels, _TEST_FRACTION, _TEST_SEED)
    return Source(
        name="digits",
        classes=tuple(str(digit) for digit in range(10)),
        parts={"train": ChosenRecords(records, train), "test": ChosenRecords(records, test)},
        facts=("digits",),
    )
