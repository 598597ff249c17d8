"""x_n, 1/T int r dt, P_n: the loop with saved states, attention maps and penalties."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from odevit.core.base import Dynamics, FixedStepSolver, History
from odevit.core.solution import Solution, Stats
from odevit.core.solve import DRIVERS, Driver, PlannedStep, Problem, StepRecord, integrate, plan_steps
from odevit.solvers.checkpointing import Segment, checkpointed
from odevit.solvers.penalties import Penalty, Step


class Gathered(NamedTuple):
    """The running costs so far, and the saved states and maps."""

    costs: tuple[Tensor, ...]
    states: tuple[Tensor, ...] = ()
    attentions: tuple[Tensor, ...] = ()


@DRIVERS.register("recording")
class Recording(Driver):
    """The plain loop, with `save`, `penalties` and `checkpoint`."""

    def problems(self, problem: Problem) -> list[str]:
        return []

    def run(self, problem: Problem) -> Solution:
        solver, x0, times = problem.solver, problem.x0, problem.times
        assert isinstance(solver, FixedStepSolver)  # the others have the adaptive driver
        dynamics, running = problem.start(), {n: p for n, p in self.penalties.items() if p.is_running()}
        needs_maps = self.save.attentions or any(penalty.needs_attentions for penalty in running.values())
        numbers, span = self.save.numbers(len(times) - 1), times[-1] - times[0]
        # With a hook, a faded field is evaluated after its end too, and those evaluations count.
        plan = plan_steps(
            solver, dynamics.with_attention_hook(lambda _: None) if needs_maps else dynamics, times, problem.grid
        )

        def run(x: Tensor, costs: tuple[Tensor, ...], steps: list[PlannedStep], history: History) -> Segment:
            maps: list[Tensor] = []  # a new list for each run: a segment may be recomputed
            hooked = dynamics.with_attention_hook(maps.append) if needs_maps else dynamics

            def gather(so_far: Gathered, step: StepRecord) -> Gathered:
                costs, states, attentions = so_far
                if running:
                    costs = _add_costs(costs, list(running.values()), step, dynamics, tuple(maps), step.h / span)
                if step.n + 1 in numbers:
                    states += self.save.detached([step.after])
                if self.save.attentions:
                    attentions += self.save.detached(maps)
                maps.clear()
                return Gathered(costs, states, attentions)

            end, (costs, *saved), history = integrate(solver, hooked, x, steps, gather, Gathered(costs), history)
            return Segment(end, costs, tuple(saved), history)

        costs = tuple(x0.new_zeros(()) for _ in running)
        if self.checkpoint:
            # Dropout masks are drawn before the trajectory, so only penalties draw random numbers in a step.
            noise = any(penalty.draws_noise for penalty in running.values())
            end = checkpointed(run, x0, costs, plan, self.checkpoint, preserve_rng_state=noise)
        else:
            end = run(x0, costs, plan, ())
        states, attentions = end.saved or ((), ())
        spent = [0, *accumulate(step.nfe for step in plan)]
        return Solution(
            state=end.x,
            time=times[-1],
            stats=Stats(nfe=spent[-1], steps=len(plan)),
            states=self.save.detached([x0] if 0 in numbers else []) + states,
            times=tuple(times[n] for n in sorted(numbers)),
            spent=tuple(spent[n] for n in sorted(numbers)),
            attentions=attentions,
            penalties=self._totals(dict(zip(running, end.costs, strict=True)), dynamics, end.x, times[-1]),
        )

    def _totals(self, running: dict[str, Tensor], dynamics: Dynamics, x: Tensor, t: float) -> dict[str, Tensor]:
        """The running cost plus the terminal cost of each penalty."""
        totals = {}
        for name, penalty in self.penalties.items():
            totals[name] = running.get(name, x.new_zeros(()))
            if penalty.is_terminal():
                totals[name] = totals[name] + penalty.terminal(dynamics, x, t)
        return totals


def _add_costs(
    costs: tuple[Tensor, ...],
    penalties: list[Penalty],
    step: StepRecord,
    dynamics: Dynamics,
    maps: tuple[Tensor, ...],
    share: float,
) -> tuple[Tensor, ...]:
    """costs + share r(step), where `share` is the length of the step as a part of the whole time."""
    # The maps of evaluations inside a penalty do not belong to the trajectory.
    unhooked = step.dynamics.with_attention_hook(dynamics.attention_hook)
    record = Step(unhooked, step.t, step.h, step.before, step.after, maps)
    return tuple(cost + share * penalty.running(record) for cost, penalty in zip(costs, penalties, strict=True))
