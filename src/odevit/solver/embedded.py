"""Dormand-Prince 5(4) and Tsitouras 5(4): tableaus with an error estimate embedded in them."""

from __future__ import annotations

from dataclasses import dataclass

from odevit.solver.adaptive import AdaptiveSolver
from odevit.solver.method import SOLVERS
from odevit.solver.runge_kutta import Tableau

DOPRI_B = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
DOPRI_B_LOW = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)
TSIT_B = (0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774)


@SOLVERS.register("dopri5")
@dataclass(frozen=True)
class Dopri5(AdaptiveSolver):
    """Dormand and Prince (1980). Order 5 with an error estimate of order 4; six evaluations per step."""

    order = 5
    tableau = Tableau(
        a=(
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
            DOPRI_B,
        ),
        b=(*DOPRI_B, 0.0),
        c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
        error=tuple(high - low for high, low in zip((*DOPRI_B, 0.0), DOPRI_B_LOW, strict=True)),
    )


@SOLVERS.register("tsit5")
@dataclass(frozen=True)
class Tsit5(AdaptiveSolver):
    """Tsitouras (2011). Order 5 with an error estimate of order 4; six evaluations per step, as Dopri5."""

    order = 5
    tableau = Tableau(
        a=(
            (),
            (0.161,),
            (-0.008480655492356989, 0.335480655492357),
            (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
            (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
            (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
            TSIT_B,
        ),
        b=(*TSIT_B, 0.0),
        c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0),
        error=(
            -0.00178001105222577714,
            -0.0008164344596567469,
            0.007880878010261995,
            -0.1447110071732629,
            0.5823571654525552,
            -0.45808210592918697,
            1 / 66,
        ),
    )
