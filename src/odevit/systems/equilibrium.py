"""x* = step(x*): the rest point that a trajectory converges to, a deep equilibrium model."""

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
from odevit.solvers.implicit import NOT_CONVERGED, implicit, jacobian_size, phantom
from odevit.tokens import Tokens

WARM_UP_STEPS = 6
"""Coarse steps along the trajectory, to the horizon, before the search.

A field may have several rest points. The one to find is the limit of the image's trajectory; these steps lead into its
basin of attraction.
"""
REFERENCE_STEP = 0.5
"""The length of the step to which `tolerance` applies: in a shorter step a state moves less, wherever it is."""
ROUNDING_FACTOR = 4
"""The residual of a converged sample may be this many times the smallest tolerance that the dtype allows."""
GRADIENTS = ("implicit", "phantom", "unrolled")
NOT_CONVERGED_WARNING = (
    "Some samples of a batch did not come to rest in training: they have the gradient of steps from their last state, "
    "not that of a rest point. If there are many, use more depth.iterations, a larger depth.jacobian or a smaller "
    "learning rate"
)
"""Without numbers that change, so that Python shows it once."""
NO_LEAK_WARNING = (
    "This equilibrium has no leak: its rest points depend on the image only through the start of the search, and the "
    "embedding has no gradient. Set model.leak above 0, or depth.gradient=unrolled"
)


@DEPTHS.register("equilibrium")
class EquilibriumDepth(Depth):
    """x* = step(x*): the limit of the trajectory for long horizons. A deep equilibrium model (Bai et al. 2019).

    `step` is one step of the model's solver, of its usual length, so x* is the limit of more and more steps. The fixed
    points of Runge-Kutta and exponential methods are those of the equation, f(x*) = 0; those of a splitting differ by
    an amount that falls with the length of the step. Another solver is another map: solver="exponential_euler" gives
    the rest point of the equation, and with long steps the map of the paper, x = x0 + N(x) / leak. The leak is what Bai
    et al. call input injection: without it x* would not depend on the image.

    The survey describes it as an infinitely deep Transformer with shared weights, solved for its fixed point, with
    gradients that do not backpropagate through the iterations. Here the weights are those of an ODE: if trajectories
    converge, a checkpoint gives the same result with depth="ode" and depth="equilibrium", whichever it was trained
    with. Each sample has its own search, which starts on its trajectory and not at zero.

    `Solution.residual` is |step(x) - x| / |x| of every sample, and its state is the best one found. `unsettled` marks
    the samples that did not converge, and `failure` counts them; `notice` counts samples that converged to less than
    the tolerance. In training, samples that did not converge get the gradient of steps from their best state; if other
    samples of the batch converge, they are reported in `notice` and a warning, and not as a failure. Without that
    gradient, training could not reach weights with rest points again.

    Args:
        search: how x* and the implicit gradient are searched for, see `SEARCHES`.
        tolerance: of the residual |step(x) - x| / |x|; smaller in proportion for steps shorter than `REFERENCE_STEP`,
            and larger if the field is computed in half precision.
        iterations: the largest number of evaluations of the step in a search.
        gradient: `implicit`, by the implicit function theorem, with the memory of one step; `phantom`, that of
            `phantom_steps` steps from x*; `unrolled`, in training `iterations` plain steps instead of a search.
        phantom_steps, damping: k and tau in x <- (1 - tau) x + tau step(x).
        jacobian: weight of |J|_F^2 / numel at x* in the loss, J that of the forcing (Bai et al. 2021): it keeps rest
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
        """The map to iterate, with the model's length of step; `steps` is the largest number of evaluations."""
        if horizon is not None:
            refuse("an equilibrium", [f"horizon={horizon} was given, but a rest point has none; leave it out"])
        iterations = self.iterations if steps is None else steps
        return self.solver_config.replace(solver, iterations, iterations * self.solver_config.step, "uniform")

    # Not compiled: the search depends on values, and the implicit gradient is computed in a hook. A field that is
    # compiled by itself stays compiled.
    @torch.compiler.disable
    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        """The rest point of each sample; `solver_config.steps` is the largest number of evaluations of the step."""
        config = request.solver_config or self.resolve(None, None, None)
        with_gradient = torch.is_grad_enabled()
        training = with_gradient and self.field.training
        self._check(config, request, training)
        method, warm_up = config.method, self._warm_up(config)
        assert isinstance(method, FixedStepSolver)  # see `_check`
        dynamics = self.field.dynamics(x0)  # once: dropout has one mask for the whole search
        random_masks = any(module.draws for module in self.field.modules() if isinstance(module, Branch))

        def step(x: Tensor, equation: Dynamics = dynamics) -> Tensor:
            return method.step(equation, x, warm_up.horizon, config.step).to(x.dtype)

        def step_samples(x: Tensor, samples: Tensor) -> Tensor:
            if len(samples) == len(x0):
                return step(x)
            if not random_masks:
                return step(x, self.field.dynamics(x0[samples]))
            return step(start.index_copy(0, samples, x))[samples]  # the masks are those of the whole batch

        unrolled = with_gradient and self.gradient == "unrolled"
        path, iterations = (config, 1) if unrolled else (warm_up, config.steps)
        with torch.set_grad_enabled(unrolled):
            trajectory = solve(
                dynamics,
                x0,
                solver=path.method,
                steps=path.steps,
                t1=path.horizon,
                checkpoint=unrolled and self.gradient_checkpointing and self.field.training,
            )
        start = trajectory.state.detach()
        requested = self.tolerance * min(1.0, config.step / REFERENCE_STEP)
        tolerance = max(requested, smallest_residual(start))
        found = SEARCHES[self.search](step_samples, start, tolerance=tolerance, iterations=iterations)
        # Relative to the requested tolerance: in half precision, 100 times the smallest one would accept any state.
        converged = found.residual <= max(NOT_CONVERGED * requested, ROUNDING_FACTOR * tolerance)
        failure, notice = self._messages(found, converged, config, tolerance)
        if with_gradient:
            notice = None
        state, costs = found.state, {}
        if unrolled:
            state = trajectory.state
        elif with_gradient:
            state = self._with_gradient(step_samples, found.state, converged, config, tolerance)
        if training:
            if failure and (found.residual <= NOT_CONVERGED * tolerance).any():
                failure, notice = None, failure
                warnings.warn(NOT_CONVERGED_WARNING, OdeVitWarning, stacklevel=2)
            if not unrolled and not dynamics.leak:
                warnings.warn(NO_LEAK_WARNING, OdeVitWarning, stacklevel=2)
            if self.jacobian:
                size = jacobian_size(lambda x: dynamics.forcing(x, warm_up.horizon), state)
                costs["jacobian"] = self.jacobian * size
        cost = method.evaluations(len(dynamics.components)) + method.restart
        evaluations = found.evaluations * cost + trajectory.stats.nfe
        return Solution(
            state=state,
            time=math.inf,
            stats=Stats(nfe=int(evaluations.max()), steps=int(found.evaluations.max())),
            costs=costs,
            evaluations=evaluations,
            residual=found.residual,
            unsettled=~converged,
            failure=failure,
            notice=notice,
            solver_config=config,
        )

    def describe(self) -> str:
        return f"the rest point of {self.field.describe()}"

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        return (
            "the search for a rest point has no fixed graph, its length depends on the data; export the weights as an "
            "ODE, odevit.load(folder, depth='ode')"
        )

    def _with_gradient(self, step: Map, x: Tensor, converged: Tensor, config: SolverConfig, tolerance: float) -> Tensor:
        """x*, with the implicit or the phantom gradient."""
        if self.gradient == "phantom":
            samples = torch.arange(len(x), device=x.device)
            return phantom(lambda x: step(x, samples), x, steps=self.phantom_steps, damping=self.damping)
        search = SEARCHES[self.search]
        return implicit(step, x, search, tolerance=tolerance, iterations=config.steps, converged=converged)

    def _messages(
        self, found: FixedPoint, converged: Tensor, config: SolverConfig, tolerance: float
    ) -> tuple[str | None, str | None]:
        """A sentence about the samples that did not converge, and one about those above the tolerance."""
        unsettled, above, total = int((~converged).sum()), int((found.residual > tolerance).sum()), len(converged)
        residuals = f"residuals up to {float(found.residual.max()):.2g}, where {tolerance:.2g} was asked for"
        failure = (
            f"No rest point was found for {unsettled} of {total} samples in {config.steps} evaluations: {residuals}. "
            "Their state has the smallest residual. Look at their trajectories with depth='ode' and a long horizon."
        )
        notice = (
            f"{above} of {total} samples used up {config.steps} evaluations near rest: {residuals}. Raise "
            "depth.iterations."
        )
        return failure if unsettled else None, notice if above and not unsettled else None

    def _warm_up(self, config: SolverConfig) -> SolverConfig:
        """The steps before the search: coarse ones, or the model's until the velocity no longer depends on time.

        An equation that changes with time must be followed to the end of the change; only then does it have a rest
        point. If the model has an adaptive solver, the solver of `config` makes these steps.
        """
        own, start = self.solver_config, self.field.autonomous_from
        if not own.is_fixed:
            own = own.replace(config.solver)
        if start == 0.0:
            return own.replace(steps=WARM_UP_STEPS)
        steps = max(own.steps, math.ceil(start / own.step - 1e-9))
        return own.replace(steps=steps, horizon=steps * own.step)

    def _check(self, config: SolverConfig, request: Request, training: bool) -> None:
        """Raise an error for calls that have no rest point or no gradient."""
        problems, start = [], self.field.autonomous_from
        if not config.is_fixed:
            problems.append(f"{config.name} has no step of fixed size to iterate; pass solver=exponential_euler")
        if start == math.inf:
            problems.append(
                "its field depends on time at all times (time_conditioned), so it has no rest point; use depth='ode', "
                "or train a model without time_conditioned"
            )
        if 0.0 < start < math.inf and training and self.gradient != "unrolled":
            problems.append(
                "the weights of this field change with time, and at the rest point only the last ones would have a "
                "gradient; train with depth='ode', or with depth.gradient=unrolled"
            )
        save = SaveAt.parse(request.save)
        if save.steps or save.attentions or request.penalties or request.adjoint or request.stop:
            problems.append("save, penalties, adjoint and stop need a trajectory; leave them out, or pass depth='ode'")
        refuse("an equilibrium", problems)


def smallest_residual(x: Tensor) -> float:
    """The smallest |step(x) - x| / |x| that the dtype allows, with autocast that of its dtype.

    A quarter of the distance between two numbers near 1, since rounding errors of many numbers average out.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return torch.finfo(dtype).eps / 4
