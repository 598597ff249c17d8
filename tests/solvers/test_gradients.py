"""Backpropagation, checkpointing and the adjoint give the same gradient; checkpointing saves memory."""

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import OdeVitWarning
from odevit.objectives.penalties import JacobianNorm
from odevit.solvers.adaptive import Dopri5
from odevit.solvers.penalties import Penalty
from odevit.systems.stacked import StackedDepth
from tests.memory import PeakMemory, peak_of_training_step


def small_field(**kwargs):
    return VectorField(32, 4, 2.0, leak=1.0, **kwargs)


def gradients(field, x0, **settings):
    x0 = x0.clone().requires_grad_()
    solution = solve(field, x0, **settings)
    loss = solution.state.square().mean() + sum(solution.penalties.values())
    return torch.autograd.grad(loss, [x0, *field.parameters()])


class Speed(Penalty):
    def __call__(self, step):
        return step.velocity.square().mean()


class MapEntropy(Penalty):
    needs_attentions = True

    def __call__(self, step):
        return -sum((p * (p + 1e-9).log()).sum(-1).mean() for p in step.attentions)


@pytest.mark.parametrize("name", ["euler", "rk4", "strang", "exponential_heun"])
@pytest.mark.parametrize("penalties", [{}, {"speed": Speed(), "entropy": MapEntropy()}])
def test_checkpointed_gradients_equal_plain_ones(name, penalties):
    field, x0 = small_field(), torch.randn(2, 5, 32)
    settings = {"solver": name, "steps": 7, "t1": 2.0, "penalties": penalties}
    for a, b in zip(gradients(field, x0, **settings), gradients(field, x0, **settings, checkpoint=True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_checkpointing_uses_the_same_dropout_masks_in_the_backward_pass():
    field = small_field(dropout=0.4, drop_path=0.3).train()
    x0 = torch.randn(3, 5, 32)
    results = []
    for checkpoint in (False, True):
        torch.manual_seed(3)
        results.append(gradients(field, x0, solver="heun", steps=4, checkpoint=checkpoint))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_adjoint_gradients_equal_plain_ones(leak):
    pytest.importorskip("torchdiffeq")
    field = VectorField(16, 2, 2.0, leak=leak).double()
    x0 = torch.randn(2, 4, 16, dtype=torch.float64)
    tight = Dopri5(rtol=1e-9, atol=1e-9)
    plain = gradients(field, x0, solver=tight, t1=1.5)
    adjoint = gradients(field, x0, solver=tight, t1=1.5, adjoint=True)
    for a, b in zip(plain, adjoint, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


class Linear(torch.nn.Module):
    """dx/dt = A x: a module like any other, not a `Field`."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(0.3 * torch.randn(3, 3, dtype=torch.float64))

    def forward(self, x, t):
        return x @ self.matrix


def test_adjoint_of_a_plain_module_equals_the_matrix_exponential():
    """x(T) = x(0) e^{AT}, whose derivative torch knows."""
    pytest.importorskip("torchdiffeq")
    module, x0 = Linear(), torch.randn(2, 3, dtype=torch.float64)
    adjoint = gradients(module, x0, solver=Dopri5(rtol=1e-9, atol=1e-9), t1=1.5, adjoint=True)
    x0.requires_grad_()
    exact = torch.autograd.grad((x0 @ (1.5 * module.matrix).matrix_exp()).square().mean(), [x0, module.matrix])
    for a, b in zip(adjoint, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_adjoint_with_a_leak_warns_and_has_large_errors():
    """Trajectories that converge forwards diverge backwards; gradients through the steps have no such error."""
    torch.manual_seed(0)
    field, x0 = small_field(), torch.randn(2, 5, 32)

    def integer(tolerance, **settings):
        parts = gradients(field, x0, solver=Dopri5(rtol=tolerance, atol=tolerance), t1=6.0, **settings)
        return torch.cat([part.flatten() for part in parts])

    exact, through = integer(1e-6), integer(1e-3)
    with pytest.warns(OdeVitWarning, match="a leak of 1 makes errors grow 403 times on a horizon of 6"):
        back = integer(1e-3, adjoint=True)
    assert (back - exact).norm() > 10 * (through - exact).norm()


def test_adjoint_backward_runs_under_the_autocast_of_the_forward():
    """Autocast has ended when gradients arrive; the adjoint enters it again."""
    seen = []

    class Watched(torch.nn.Linear):
        def forward(self, x, t):
            y = super().forward(x)
            seen.append(y.dtype)
            return y

    x0 = torch.randn(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        state = solve(Watched(3, 3), x0, solver="dopri5", adjoint=True).state
    there = len(seen)
    state.sum().backward()
    assert len(seen) > there
    assert set(seen) == {torch.bfloat16}


def test_adjoint_refuses_equations_with_hidden_parameters():
    pytest.importorskip("torchdiffeq")
    module, field, x0 = Linear(), small_field(), torch.randn(2, 5, 32)
    hidden = [(lambda x, t: module(x, t), torch.randn(2, 3, dtype=torch.float64)), (field.dynamics(x0), x0)]
    for equation, start in hidden:
        with pytest.raises(ValueError, match=r"gradients the adjoint would lose; pass the nn\.Module"):
            solve(equation, start, solver="dopri5", adjoint=True)
    # Without gradients there are no hidden parameters.
    with torch.no_grad():
        solve(*hidden[1], solver="dopri5", adjoint=True)
    start = torch.ones(2, dtype=torch.float64, requires_grad=True)
    solve(lambda x, t: -x, start, solver="dopri5", adjoint=True).state.sum().backward()
    torch.testing.assert_close(start.grad, torch.full_like(start, 0.36788), rtol=1e-3, atol=0.0)


def test_checkpointing_memory_does_not_grow_with_steps():
    assert peak_of_training_step(64, checkpoint=True) < 1.25 * peak_of_training_step(8, checkpoint=True)
    # The measurement is sensitive: without checkpointing, memory grows with the steps.
    assert peak_of_training_step(64, checkpoint=False) > 6 * peak_of_training_step(8, checkpoint=False)


def peak_of_stack(checkpointing):
    stack = StackedDepth(lambda: VectorField(64, 4, 4.0), SolverConfig("lie_trotter", 8, 1.0)).train()
    stack.gradient_checkpointing = checkpointing
    x0 = torch.randn(8, 65, 64)
    with PeakMemory() as memory:
        stack(x0).state.mean().backward()
    return memory.peak


def test_checkpointing_halves_the_memory_of_a_stack():
    assert peak_of_stack(True) < 0.5 * peak_of_stack(False)


def test_checkpointing_restores_the_noise_of_penalties():
    field, x0 = VectorField(16, 2, 2.0, leak=0.5).train(), torch.randn(2, 5, 16)
    gradients = []
    for checkpoint in (False, True):
        torch.manual_seed(3)
        field.zero_grad()
        penalties = {"jacobian": JacobianNorm()}
        solution = solve(field, x0, solver="heun", steps=6, penalties=penalties, checkpoint=checkpoint)
        solution.penalties["jacobian"].backward()
        gradients.append(field.attention.q_proj.weight.grad.clone())
    torch.testing.assert_close(*gradients)
