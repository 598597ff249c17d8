"""|error| <= atol + rtol |x|: Runge-Kutta methods with adaptive step size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, Solver
from odevit.core.runge_kutta import Tableau, combine
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solve import DRIVERS, Driver, Problem
from odevit.errors import Expected, integer, real, validate

SAFETY, SHRINK, GROW = 0.9, 0.2, 5.0
"""The safety factor of the next step size, and the smallest and largest factor by which it changes."""


@dataclass(frozen=True)
class AdaptiveSolver(Solver):
    """h' = 0.9 h err^{-1/p}, err = rms(error / (atol + rtol max(|x|, |x'|))); a step with err > 1 is rejected.

    The whole batch has one step size, so a result can depend, within the tolerance, on the other samples. The number
    of steps depends on the data: these solvers neither compile nor export.

    Args:
        rtol, atol: relative and absolute tolerance of a step.
        max_steps: the largest number of steps, rejected ones included.
        min_step: the smallest step, as a fraction of t1 - t0.
    """

    rtol: float = 1e-4
    atol: float = 1e-5
    max_steps: int = 1000
    min_step: float = 1e-7

    tableau: ClassVar[Tableau]

    def __post_init__(self) -> None:
        rules = {
            "rtol": real(minimum=0),
            "atol": real(above=0),
            "max_steps": integer(1),
            "min_step": Expected("a fraction of the horizon in (0, 1)", real(above=0, below=1).accepts),
        }
        problems = validate(self, rules)
        if problems:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(problems))

    def integrate(self, dynamics: Dynamics, x0: Tensor, t0: float, t1: float, steps: int, save: SaveAt) -> Solution:
        """Integrate from t0 to t1. The time has `steps` equal parts; a step ends exactly where `save` asks for a state.

        A step also ends wherever the velocity jumps: the error estimate, made for smooth velocities, could miss a jump.
        """
        span, saved, jumps = t1 - t0, save.numbers(steps), dynamics.discontinuities(t0, t1)
        states, times = ([x0], [t0]) if 0 in saved else ([], [])
        maps: list[Tensor] = []
        if save.attentions:
            dynamics = dynamics.with_attention_hook(maps.append)
        targets = [(t1 if n == steps else t0 + span * n / steps, n in saved) for n in {*saved, steps} - {0}]
        targets = sorted([*targets, *((time, False) for time in jumps)], key=lambda target: target[0] * span)
        x, t = x0, t0
        slope = dynamics.for_step(t, targets[0][0])(x, t)
        h = self._first_step(x, slope, span)
        nfe, accepted, rejected, failure = 1, 0, 0, None
        for target, save_state in targets:
            piece = dynamics.for_step(t, target) if jumps else dynamics
            if jumps and t != t0 and failure is None:
                slope = piece(x, t)
                nfe += 1
            while failure is None and (target - t) * span > 0:
                if accepted + rejected >= self.max_steps:
                    failure = (
                        f"Stopped at t = {t:g} of {t1:g} after max_steps = {self.max_steps} steps. "
                        "Raise `max_steps`, loosen `rtol` and `atol`, or use a fixed-step solver."
                    )
                    break
                # A step to the target may be shorter than the controller's; the controller's size is used after it.
                at_target = abs(target - t) <= abs(h)
                trial = target - t if at_target else h
                after, next_slope, error = self._try(piece, x, slope, t, trial)
                nfe += self.tableau.stages - 1
                ratio = self._in_tolerances(error, torch.maximum(x.abs(), after.abs()))
                if ratio <= 1.0:
                    x, slope, accepted = after, next_slope, accepted + 1
                    t = target if at_target else t + trial
                else:
                    rejected += 1
                proposal = trial * self._factor(ratio)
                if not (at_target and ratio <= 1.0 and abs(proposal) < abs(h)):
                    h = proposal
                if abs(h) < self.min_step * abs(span):
                    failure = (
                        f"Stopped at t = {t:g} of {t1:g}: the step fell below min_step = {self.min_step:g} of t1 - t0. "
                        "The field is stiff or not smooth there: loosen the tolerances or use an exponential solver."
                    )
            if failure is None and save_state:
                states.append(x)
                times.append(t)
        return Solution(
            state=x,
            time=t,
            stats=Stats(nfe=nfe, steps=accepted, rejected=rejected),
            states=save.detached(states),
            times=tuple(times),
            attentions=save.detached(maps),
            failure=failure,
        )

    def _try(self, dynamics: Dynamics, x: Tensor, slope: Tensor, t: float, h: float) -> tuple[Tensor, Tensor, Tensor]:
        """One step: its end, the slope there (the last stage, which the next step reuses) and the error estimate."""
        slopes = [slope]
        after = x
        for weights, node in zip(self.tableau.a[1:], self.tableau.c[1:], strict=True):
            after = combine(x, weights, slopes, h)
            slopes.append(dynamics(after, t + node * h))
        error = combine(torch.zeros_like(x), self.tableau.error, slopes, h)
        return after.to(x.dtype), slopes[-1], error

    def _factor(self, ratio: float) -> float:
        if ratio != ratio:  # NaN: the field is not finite at a stage
            return SHRINK
        return GROW if ratio == 0.0 else min(GROW, max(SHRINK, SAFETY * ratio ** (-1.0 / self.order)))

    def _first_step(self, x: Tensor, slope: Tensor, span: float) -> float:
        """A hundredth of |x| / |dx/dt| in units of the tolerance (Hairer, Norsett and Wanner, II.4, first guess)."""
        size, speed = self._in_tolerances(x, x.abs()), self._in_tolerances(slope, x.abs())
        guess = 0.01 * size / speed if size > 1e-5 and speed > 1e-5 else 1e-3 * abs(span)
        return math.copysign(min(guess, abs(span)), span)

    @torch.no_grad()
    def _in_tolerances(self, vector: Tensor, magnitude: Tensor) -> float:
        """rms(v / (atol + rtol |x|)), in single precision at least: squares overflow in half precision."""
        kind = torch.promote_types(vector.dtype, torch.float32)
        vector, magnitude = vector.to(kind), magnitude.to(kind)
        return float((vector / (self.atol + self.rtol * magnitude)).square().mean().sqrt())


@DRIVERS.register("adaptive")
class Adaptive(Driver):
    """Steps of adaptive size, with `save`."""

    def problems(self, problem: Problem) -> list[str]:
        return adaptive_problems(self)

    def run(self, problem: Problem) -> Solution:
        solver, times = problem.solver, problem.times
        assert isinstance(solver, AdaptiveSolver)  # the other solvers have other drivers
        return solver.integrate(problem.start(), problem.x0, times[0], times[-1], len(times) - 1, self.save)


def adaptive_problems(driver: Driver) -> list[str]:
    """Why the options of a call are not possible with an adaptive solver."""
    problems = []
    if driver.checkpoint:
        problems.append("checkpoint=True is for fixed-step solvers; use adjoint=True with solver='dopri5'")
    if driver.penalties:
        problems.append("penalties are accumulated on a fixed grid; use a fixed-step solver such as 'heun'")
    return problems


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
