"""Small models give the numbers that were frozen before the loop was rewritten."""

from __future__ import annotations

import json

import pytest

from tests.golden.cases import FILE, cases

WANTED = json.loads(FILE.read_text())


def test_cases_cover_exactly_the_frozen_ones() -> None:
    assert {name for name, _ in NOW.items()} == set(WANTED)


NOW = dict(cases())


@pytest.mark.parametrize("name", WANTED)
def test_model_outputs_equal_the_frozen_ones_in_double_precision(name: str) -> None:
    # Sums may be ordered otherwise on another CPU; a few hundred roundings of 1e-16 stay far below 1e-12.
    assert NOW[name] == pytest.approx(WANTED[name], rel=1e-12, abs=1e-13)
