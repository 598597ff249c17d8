"""Dormand and Prince 5(4)."""

from __future__ import annotations

from dataclasses import dataclass

from odevit.solver.adaptive import AdaptiveSolver
from odevit.solver.base import SOLVERS
from odevit.solver.tableau import Tableau

B = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
B_LOW = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)


@SOLVERS.register("dopri5")
@dataclass(frozen=True)
class Dopri5(AdaptiveSolver):
    """Dormand and Prince (1980). Order 5 with an error estimate of order 4; six evaluations a step."""

    order = 5
    tableau = Tableau(
        a=(
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
            B,
        ),
        b=(*B, 0.0),
        c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
        error=tuple(high - low for high, low in zip((*B, 0.0), B_LOW, strict=True)),
    )
