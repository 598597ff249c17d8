"""Multistep methods: weights, order on grids, and their history."""

import itertools
import math

import pytest
import torch

from odevit.core.base import Dynamics
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig, edges, make_solver
from odevit.solvers.grids import GRIDS
from odevit.solvers.multistep import adams_weights, phi
from tests.problems import PROBLEMS, slope

MULTISTEP = ["ab2", "ab3", "etd_ab2", "etd_ab3"]


def test_adams_weights_equal_published_ones_and_the_integral():
    assert adams_weights([0.0, -0.5], 0.5) == pytest.approx([0.75, -0.25])
    assert adams_weights([0.0, -1.0, -2.0], 1.0) == pytest.approx([23 / 12, -16 / 12, 5 / 12])
    h, z = 0.25, -3.0
    assert adams_weights([0.0, -h], h, z) == pytest.approx([h * (phi(1, z) + phi(2, z)), -h * phi(2, z)])
    # Any nodes, against the integral by a fine midpoint rule.
    nodes, cells = [0.0, -0.3, -0.9], 4000
    found = adams_weights(nodes, h, z)
    for j, weight in enumerate(found):
        total = 0.0
        for cell in range(cells):
            s = h * (cell + 0.5) / cells
            basis = math.prod((s - other) / (nodes[j] - other) for i, other in enumerate(nodes) if i != j)
            total += math.exp(z * (1 - s / h)) * basis * h / cells
        assert weight == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("z", [-30.0, -0.51, -0.49, -1e-9, 0.0, 0.7])
def test_phi_obeys_its_recurrence(z):
    for k in (1, 2):
        assert z * phi(k + 1, z) + 1 / math.factorial(k) == pytest.approx(phi(k, z), rel=1e-14)


@pytest.mark.parametrize("grid", ["geometric:20", (0.0, 0.2, 0.3, 1.0)])
@pytest.mark.parametrize("name", [*MULTISTEP, "rk4", "exponential_heun"])
def test_solvers_keep_their_order_on_nonuniform_grids(name, grid):
    case = PROBLEMS["nonlinear"](1.5)
    errors = [
        (solve(case.dynamics, case.x0, solver=name, steps=steps, grid=grid).state - case.exact(1.0)).abs().max().item()
        for steps in (96, 192, 384)
    ]
    order = make_solver(name).order
    assert slope(errors) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("name", MULTISTEP)
def test_checkpointed_multistep_gradients_equal_plain_ones(name):
    torch.manual_seed(0)
    field, x = VectorField(16, 2, 1.0, leak=1.0).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    gradients = []
    for checkpoint in (False, True):
        solution = solve(field, x, solver=name, steps=11, t1=3.0, checkpoint=checkpoint, grid="geometric")
        gradients.append(torch.autograd.grad(solution.state.square().sum(), list(field.parameters())))
        assert solution.stats.nfe == 12
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-12, atol=1e-12 * plain.abs().max().item())


@pytest.mark.parametrize("name", ["ab3", "etd_ab3"])
def test_early_exit_keeps_the_history_of_running_samples(name):
    start = torch.tensor([[8.0, 1.0], [0.5, 2.0], [4.0, 3.0], [2.0, 1.0]], dtype=torch.float64)

    def field(x, t, _):  # the first channel stands still and says how fast the second decays
        return torch.stack([torch.zeros_like(x[:, 0]), -x[:, 0] * x[:, 1]], dim=1)

    alone = [
        solve(Dynamics({"f": field}, start[[n]]), start[[n]], solver=name, steps=40, t1=4.0, stop="velocity")
        for n in range(4)
    ]
    together = solve(Dynamics({"f": field}, start), start, solver=name, steps=40, t1=4.0, stop="velocity")
    assert len(set(together.evaluations.tolist())) > 2, "samples stop at different times"
    torch.testing.assert_close(together.state, torch.cat([one.state for one in alone]), rtol=1e-12, atol=0)
    assert together.evaluations.tolist() == [one.stats.nfe for one in alone]
    assert together.stop_times.tolist() == pytest.approx([one.time for one in alone])


@pytest.mark.parametrize("grid", [*GRIDS, "geometric:0.2", (0.0, 0.1, 1.0)])
def test_edges_go_from_t0_to_t1_in_order(grid):
    times = edges(grid, 7, 1.0, -2.0)
    assert (times[0], times[-1], len(times)) == (1.0, -2.0, 8)
    assert all(late < early for early, late in itertools.pairwise(times))
    solver_config = SolverConfig("heun", 7, 3.0, grid)
    assert solver_config.replace(steps=9).grid == solver_config.stretched(2).grid == grid


def test_penalties_and_saved_times_use_the_grid():
    """1/T int r dt of r = |velocity|^2 on x' = 2 t, x = t^2: steps have lengths, not numbers."""
    from odevit.objectives.penalties import Transport

    x0 = torch.zeros(1, 1, 1, dtype=torch.float64)
    solver_config = {"solver": "midpoint", "steps": 3, "grid": (0.0, 0.1, 0.4, 1.0)}
    solution = solve(
        lambda x, t: torch.full_like(x, 2 * t), x0, **solver_config, save="all", penalties={"transport": Transport()}
    )
    assert solution.times == pytest.approx((0.0, 0.1, 0.4, 1.0))
    assert [state.item() for state in solution.states] == pytest.approx([0.0, 0.01, 0.16, 1.0])
    expected = sum((b**2 - a**2) ** 2 / (b - a) for a, b in ((0, 0.1), (0.1, 0.4), (0.4, 1.0)))
    assert solution.penalties["transport"].item() == pytest.approx(expected)


@pytest.mark.parametrize("grid", ["logarithmic", "geometric:0", "geometric:x", (0.0, 0.5), (0.0, 0.6, 0.5, 1.0), 3])
def test_invalid_grids_are_refused(grid):
    with pytest.raises(ValueError, match="grid"):
        SolverConfig("heun", 4, 1.0, grid)
