"""x* = step(x*): depth as the rest point that a trajectory comes to."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from odevit.core.base import DEFAULT, DEPTHS, Depth, Dynamics, Field, FixedStepSolver, Request, Solver
from odevit.core.field import Branch
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solve import solve
from odevit.core.solver_config import MOST_STEPS, SolverConfig
from odevit.errors import Expected, OdeVitWarning, integer, real, refuse
from odevit.solvers.fixed_point import SEARCHES, FixedPoint, Map
from odevit.solvers.hutchinson import jacobian_size
from odevit.solvers.implicit import NOT_CONVERGED, implicit, phantom
from odevit.tokens import Tokens

WARM_UP = 6
"""Steps along the trajectory, to the horizon, before the search begins.

A field may have several rest points. The one that is meant is the one whose basin the image lies in; a few coarse steps
of the model's own lead there, and the search then finds the bottom.
"""
REST_SPAN = 0.5
"""The time over which a residual is judged: in a shorter step a state moves less, wherever it is."""
ROUNDED = 4
"""What rounding may add to the smallest residual that was asked for, in such residuals."""
GRADIENTS = ("implicit", "phantom", "unrolled")
NOT_AT_REST = (
    "Some samples of a batch did not come to rest in training: they have the gradient of steps from where they are, "
    "not that of a rest point. Where there are many, more depth.iterations, a larger depth.jacobian or a smaller "
    "learning rate help"
)
"""Without numbers that change: Python says the same sentence once."""
NOT_TOLD = (
    "This equilibrium has no leak: its rest points do not know the image but by where the search begins, and what "
    "embeds it has no gradient. Set model.leak above 0, or depth.gradient=unrolled"
)


@DEPTHS.register("equilibrium")
class EquilibriumDepth(Depth):
    """x* = step(x*): where the trajectory would end if it never stopped. A deep equilibrium model (Bai et al. 2019).

    `step` is one step of the model's own solver, with its own length: x* is what the model comes to when it is given
    more and more of its steps. Runge-Kutta and exponential methods stand still exactly where f(x*) = 0; a splitting
    does so a little beside it, and the distance falls with the length of the step. Another solver names another map:
    solver="exponential_euler" gives the rest point of the equation itself, and with long steps the map of the paper,
    x = x0 + N(x) / leak. The leak is what Bai et al. call input injection: without it x* would not know the image.

    The survey has it as an infinitely deep Transformer with shared weights, solved for its fixed point, with gradients
    that need no way back through the iterations. Here the weights are those of an ODE: where trajectories come to rest,
    a checkpoint answers alike with depth="ode" and depth="equilibrium", whichever it was trained with. And every sample
    searches for itself, from a point on its own trajectory instead of zero.

    What was not found is said: `Solution.residual` has |step(x) - x| / |x| of every sample, `failure` counts those that
    did not come to rest, which are `unsettled`, `notice` those that came near and no nearer, and the state is the best
    one on the way. In training the unsettled have the gradient of steps from there; while others of the batch rest,
    that is a `notice` and a warning and no failure. Learned nothing from, they would be stuck: once there are many,
    nothing leads the field back to where rest points are.

    Args:
        search: how x* is found, and the implicit gradient: see `SEARCHES`.
        tolerance: of the residual |step(x) - x| / |x|; of a step shorter than `REST_SPAN` in proportion, and raised to
            what can be reached where the field is computed in less than single precision.
        iterations: the most evaluations of the step that a search makes.
        gradient: `implicit`, by the implicit function theorem, with memory for one step, or that of one step where
            there is none; `phantom`, that of `phantom_steps` steps from x*; `unrolled`, no search in training, but
            `iterations` plain steps.
        phantom_steps, damping: k and tau in x <- (1 - tau) x + tau step(x).
        jacobian: weight of |J|_F^2 / numel at x*, J that of the forcing, in the loss (Bai et al. 2021): it keeps rest
            points easy to find while weights grow.
    """

    rules = {  # noqa: RUF012 (a mapping of the class, like that of every depth)
        "search": Expected(f"one of {', '.join(SEARCHES)}", lambda name: name in SEARCHES),
        "tolerance": real(above=0, maximum=1e-2),
        "iterations": integer(1, MOST_STEPS),
        "gradient": Expected(f"one of {', '.join(GRADIENTS)}", lambda name: name in GRADIENTS),
        "phantom_steps": integer(1, MOST_STEPS),
        "damping": real(above=0, maximum=1),
        "jacobian": real(minimum=0),
    }
    shares_field = True
    fixed_graph = False

    def __init__(
        self,
        make_field: Callable[[], Field],
        solver_config: SolverConfig,
        *,
        search: str = "anderson",
        tolerance: float = 1e-4,
        iterations: int = 60,
        gradient: str = "implicit",
        phantom_steps: int = 5,
        damping: float = 1.0,
        jacobian: float = 0.0,
    ) -> None:
        super().__init__(make_field, solver_config)
        self.field = make_field()
        self.search, self.tolerance, self.iterations = search, tolerance, iterations
        self.gradient, self.phantom_steps, self.damping = gradient, phantom_steps, damping
        self.jacobian = jacobian

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig:
        """Another map to iterate, its step as long as the model's own; `steps` is the most that the search takes."""
        if horizon is not None:
            refuse("an equilibrium", [f"horizon={horizon} was given, but a rest point has none; leave it out"])
        most = self.iterations if steps is None else steps
        return self.solver_config.replace(solver, most, most * self.solver_config.step, "uniform")

    # What a search does next hangs on what it has found, and the gradient that it hands on is made in a hook. A model
    # that is compiled does this part as it is written; a field that is compiled by itself stays so.
    @torch.compiler.disable
    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        """The rest point of one step of `way`, for each sample; `way.steps` is the most that the search takes."""
        solver_config = request.solver_config or self.resolve(None, None, None)
        learning = torch.is_grad_enabled()
        self._refuse(solver_config, request, learning)
        method, to, search = solver_config.method, self._approach(solver_config), SEARCHES[self.search]
        assert isinstance(method, FixedStepSolver)  # others are refused
        dynamics = self.field.dynamics(x0)  # once: dropout has one mask for the whole search
        drawn = any(module.draws for module in self.field.modules() if isinstance(module, Branch))

        def step(x: Tensor, of: Dynamics = dynamics) -> Tensor:
            return method.step(of, x, to.horizon, solver_config.step).to(x.dtype)

        def step_of(x: Tensor, samples: Tensor) -> Tensor:
            if len(samples) == len(x0):
                return step(x)
            if not drawn:
                return step(x, self.field.dynamics(x0[samples]))
            return step(begin.index_copy(0, samples, x))[samples]  # masks belong to their samples: everybody goes along

        unrolled = learning and self.gradient == "unrolled"
        path, most = (solver_config, 1) if unrolled else (to, solver_config.steps)
        with torch.set_grad_enabled(unrolled):
            near = solve(
                dynamics,
                x0,
                solver=path.method,
                steps=path.steps,
                t1=path.horizon,
                checkpoint=unrolled and self.gradient_checkpointing and self.field.training,
            )
        begin = near.state.detach()
        asked = self.tolerance * min(1.0, solver_config.step / REST_SPAN)
        tolerance = max(asked, smallest_residual(begin))
        rest = search(step_of, begin, tolerance=tolerance, iterations=most)
        # Of what was asked for, not of what rounding leaves: in half precision that would be anywhere.
        calm = rest.residual <= max(NOT_CONVERGED * asked, ROUNDED * tolerance)
        failure, notice = self._failure(rest, calm, solver_config, tolerance), None
        if failure is None and not learning:
            notice = self._notice(rest, solver_config, tolerance)
        state, costs = rest.state, {}
        if learning:
            state = near.state if unrolled else self._with_gradient(step_of, rest.state, calm, solver_config, tolerance)
            if failure and self.field.training and (rest.residual <= NOT_CONVERGED * tolerance).any():
                failure, notice = None, failure
                warnings.warn(NOT_AT_REST, OdeVitWarning, stacklevel=2)
            if not unrolled and self.field.training and not dynamics.leak:
                warnings.warn(NOT_TOLD, OdeVitWarning, stacklevel=2)
            if self.jacobian and self.field.training:
                size = jacobian_size(lambda x: dynamics.forcing(x, to.horizon), state)
                costs["jacobian"] = self.jacobian * size
        cost = method.evaluations(len(dynamics.components)) + method.restart
        evaluations = rest.evaluations * cost + near.stats.nfe
        return Solution(
            state=state,
            time=math.inf,
            stats=Stats(nfe=int(evaluations.max()), steps=int(rest.evaluations.max())),
            costs=costs,
            evaluations=evaluations,
            residual=rest.residual,
            unsettled=~calm,
            failure=failure,
            notice=notice,
            solver_config=solver_config,
        )

    def describe(self) -> str:
        return f"the rest point of {self.field.describe()}"

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        return (
            "the search for a rest point has no fixed graph, it goes on until one is found; export the same weights as "
            "an equation, odevit.load(folder, depth='ode')"
        )

    def _with_gradient(
        self, step: Map, x: Tensor, calm: Tensor, solver_config: SolverConfig, tolerance: float
    ) -> Tensor:
        """x*, with the gradient that was chosen."""
        if self.gradient == "phantom":
            everybody = torch.arange(len(x), device=x.device)
            return phantom(lambda x: step(x, everybody), x, steps=self.phantom_steps, damping=self.damping)
        return implicit(
            step, x, SEARCHES[self.search], tolerance=tolerance, iterations=solver_config.steps, converged=calm
        )

    def _failure(self, rest: FixedPoint, calm: Tensor, solver_config: SolverConfig, tolerance: float) -> str | None:
        """Who did not come to rest, as a sentence."""
        restless = int((~calm).sum())
        if restless == 0:
            return None
        return (
            f"No rest point was found for {restless} of {len(calm)} samples in {solver_config.steps} evaluations: residuals "
            f"up to {float(rest.residual.max()):.2g}, where {tolerance:.2g} was asked for. Their state is the one with "
            "the smallest velocity on the way. See where they go with depth='ode' and a long horizon."
        )

    def _notice(self, rest: FixedPoint, solver_config: SolverConfig, tolerance: float) -> str | None:
        """Who came near rest, but not as near as was asked for."""
        short = int((rest.residual > tolerance).sum())
        if short == 0:
            return None
        return (
            f"{short} of {len(rest.residual)} samples used up {solver_config.steps} evaluations near rest: residuals up "
            f"to {float(rest.residual.max()):.2g}, where {tolerance:.2g} was asked for. Raise depth.iterations."
        )

    def _approach(self, solver_config: SolverConfig) -> SolverConfig:
        """How to come near: coarsely, or, where the field knows the time, in the model's steps until it no longer does.

        An equation that moves in time has to be followed on its way: only what is left of it at the end has a rest.
        A solver that chooses its own steps has none to be coarse in, and the one of `way` makes them.
        """
        own, since = (
            self.solver_config if self.solver_config.is_fixed else self.solver_config.replace(solver_config.solver),
            self.field.autonomous_from,
        )
        if since == 0.0:
            return own.replace(steps=WARM_UP)
        steps = max(own.steps, math.ceil(since / own.step - 1e-9))
        return own.replace(steps=steps, horizon=steps * own.step)

    def _refuse(self, solver_config: SolverConfig, request: Request, learning: bool) -> None:
        problems, since = [], self.field.autonomous_from
        if not solver_config.is_fixed:
            problems.append(
                f"{solver_config.name} makes no map of one step; give solver=exponential_euler, which makes one"
            )
        if since == math.inf:
            problems.append(
                "its field never ceases to know the time (time_conditioned does that), and what moves for ever has no "
                "rest point; follow it with depth='ode', or train a model without time_conditioned"
            )
        if 0.0 < since < math.inf and learning and self.field.training and self.gradient != "unrolled":
            problems.append(
                "the weights of this field move in time, and only the last ones are there at rest: the others would "
                "have no gradient; train with depth='ode', or with depth.gradient=unrolled"
            )
        keep = SaveAt.parse(request.save)
        if keep.steps or keep.attentions or request.penalties or request.adjoint or request.stop:
            problems.append("save, penalties, adjoint and stop belong to a trajectory; leave them out, or depth='ode'")
        refuse("an equilibrium", problems)


def smallest_residual(x: Tensor) -> float:
    """What rounding leaves of |step(x) - x| / |x|: a search for less would go on until its evaluations are used up.

    A quarter of the distance between two numbers near 1, since rounding errors of many numbers average out.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return torch.finfo(dtype).eps / 4
