"""Exponents that are known: of matrices, of Lorenz' and van der Pol's equations, of fields that contract."""

import math

import pytest
import torch

from odevit.analysis.lyapunov import by_class, divergence_step, lyapunov_spectrum, lyapunov_time, maximal_exponent
from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.errors import ConfigError

LORENZ = 0.9056
"""The maximal exponent at (10, 28, 8/3), Sprott 2003 and others."""


def linear(matrix):
    A = torch.as_tensor(matrix, dtype=torch.float64)
    return lambda x, t: x @ A.T.to(x)


LORENZ_LINEAR = torch.tensor([[-10.0, 10.0, 0.0], [28.0, -1.0, 0.0], [0.0, 0.0, -8.0 / 3.0]], dtype=torch.float64)
LORENZ_PRODUCT = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)


def lorenz(x, t):
    """(10 (y - x), x (28 - z) - y, x y - 8/3 z)."""
    return x @ LORENZ_LINEAR.T + x[..., :1] * (x @ LORENZ_PRODUCT.T)


def van_der_pol(x, t):
    a, b = x.unbind(dim=-1)
    return torch.stack([b, (1.0 - a * a) * b - a], dim=-1)


def mean_divergence(field, x, horizon, steps):
    """1/T int div f(x(t)) dt by the trapezoidal rule, div f the trace of a dense Jacobian, one number per sample."""
    path = solve(field, x, solver="rk4", steps=steps, t1=horizon, save="all")
    dynamics = field.dynamics(x) if isinstance(field, VectorField) else None
    divergences = []
    for state, t in zip(path.states, path.times, strict=True):
        velocity = (lambda s, t=t: field(s, t)) if dynamics is None else (lambda s, t=t: dynamics(s, t))
        jacobian = torch.autograd.functional.jacobian(lambda s, velocity=velocity: velocity(s).sum(dim=0), state)
        flat = jacobian.reshape(state[0].numel(), len(x), -1)
        divergences.append(flat.diagonal(dim1=0, dim2=2).sum(dim=-1))
    weights = torch.ones(steps + 1, dtype=torch.float64)
    weights[[0, -1]] = 0.5
    return (weights[:, None] * torch.stack(divergences)).sum(dim=0) / steps


MATRICES = {
    "diagonal": ([[0.5, 0.0, 0.0], [0.0, -0.2, 0.0], [0.0, 0.0, -1.0]], [0.5, -0.2, -1.0]),
    "non-normal": ([[-0.3, 8.0, 0.0], [0.0, -1.0, 5.0], [0.0, 0.0, -2.0]], [-0.3, -1.0, -2.0]),
    "rotation and decay": ([[-0.1, -2.0, 0.0], [2.0, -0.1, 0.0], [0.0, 0.0, -1.0]], [-0.1, -0.1, -1.0]),
}


@pytest.mark.parametrize("case", MATRICES)
def test_spectrum_of_a_matrix_is_the_real_parts_of_its_eigenvalues(case):
    matrix, exponents = MATRICES[case]
    x0 = torch.randn(2, 3, dtype=torch.float64)
    settings = {"horizon": 40.0, "steps": 500, "transient": 20.0}
    expected = torch.tensor(exponents, dtype=torch.float64).expand(2, 3)
    spectrum = lyapunov_spectrum(linear(matrix), x0, 3, **settings)
    torch.testing.assert_close(spectrum.values, expected, rtol=0, atol=1e-3)
    maximal = maximal_exponent(linear(matrix), x0, **settings)
    torch.testing.assert_close(maximal.maximal, expected[:, 0], rtol=0, atol=1e-3)
    assert maximal.converged.all()
    assert spectrum.converged.all()
    # The first comes out largest, but for the rounding of two that are equal.
    torch.testing.assert_close(spectrum.maximal, spectrum.values[:, 0], rtol=0, atol=1e-3)


def test_the_running_estimate_ends_at_the_value_and_starts_at_the_growth_of_the_first_step():
    measured = maximal_exponent(linear([[0.5]]), torch.ones(2, 1, dtype=torch.float64), horizon=4.0, steps=8, t0=1.0)
    assert measured.running.shape == (8, 2, 1)
    assert measured.times == pytest.approx([1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0])
    torch.testing.assert_close(measured.running[-1], measured.values)
    torch.testing.assert_close(measured.running[0], torch.full((2, 1), 0.5).double(), rtol=1e-3, atol=0)
    torch.testing.assert_close(measured.state, torch.full((2, 1), math.exp(2.0)).double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("solver", [name for name, kind in SOLVERS.items() if issubclass(kind, FixedStepSolver)])
def test_spectrum_is_that_of_the_solvers_own_map(solver):
    """On x' = -x - leak (x - anchor) a step multiplies differences by a number: its logarithm is the exponent."""
    dynamics = Dynamics({"decay": lambda x, t, _: -x}, anchor=torch.zeros(1, 1, dtype=torch.float64), leak=0.5)
    h, x = 0.25, torch.tensor([[1.0]], dtype=torch.float64)
    factor = SOLVERS[solver]().step(dynamics, x, 0.0, h).item()
    measured = maximal_exponent(dynamics, x, horizon=2.0, steps=8, solver=solver)
    rounding = 1000 * torch.finfo(torch.float64).eps / h
    assert measured.maximal.item() == pytest.approx(math.log(factor) / h, rel=0, abs=rounding)


def test_maximal_exponent_of_lorenz():
    x0 = torch.randn(256, 3, dtype=torch.float64) + torch.tensor([1.0, 1.0, 25.0])
    measured = maximal_exponent(lorenz, x0, horizon=80.0, steps=4000, transient=10.0)
    assert measured.maximal.mean().item() == pytest.approx(LORENZ, rel=0.02)
    within = (measured.values - LORENZ).abs() < 2 * measured.error
    assert within.double().mean() > 0.9
    assert measured.converged.double().mean() > 0.9


def test_the_spectrum_of_lorenz_sums_to_its_divergence():
    x0 = torch.randn(64, 3, dtype=torch.float64) + torch.tensor([1.0, 1.0, 25.0])
    measured = lyapunov_spectrum(lorenz, x0, 3, horizon=20.0, steps=1000, transient=10.0)
    torch.testing.assert_close(measured.values.sum(dim=1), torch.full((64,), -41.0 / 3).double(), rtol=1e-3, atol=0)
    mean = measured.values.mean(dim=0)
    assert mean[0].item() == pytest.approx(LORENZ, rel=0.05)
    assert mean[1].item() == pytest.approx(0.0, abs=0.03)


def test_van_der_pol_neither_grows_nor_shrinks_along_its_cycle():
    x0 = torch.tensor([[2.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    on_cycle = solve(van_der_pol, x0, solver="rk4", steps=1000, t1=30.0).state
    measured = lyapunov_spectrum(van_der_pol, on_cycle, 2, horizon=50.0, steps=1500, transient=0.0)
    assert (measured.values[:, 0].abs() < 0.05).all()
    assert (measured.values[:, 1] < -0.9).all()
    expected = mean_divergence(van_der_pol, on_cycle, 50.0, 1500)
    torch.testing.assert_close(measured.values.sum(dim=1), expected, rtol=2e-3, atol=0)
    assert (measured.values[:, 0].abs() <= 2 * measured.error[:, 0]).all()


def test_a_full_spectrum_sums_to_the_mean_divergence_of_a_field():
    field = VectorField(4, 2, 2.0, leak=0.5).double()
    x0 = torch.randn(2, 3, 4, dtype=torch.float64)
    measured = lyapunov_spectrum(field, x0, 12, horizon=3.0, steps=60)
    torch.testing.assert_close(measured.values.sum(dim=1), mean_divergence(field, x0, 3.0, 60), rtol=2e-3, atol=0)


def test_maximal_exponent_of_weak_weights_with_leak_is_negative():
    """f' = -leak + something small: every exponent is negative and near -leak."""
    field = VectorField(8, 2, 1.0, norm="center", leak=1.0).double()
    for parameter in field.parameters():
        parameter.data.mul_(0.3)
    x0 = torch.randn(3, 4, 8, dtype=torch.float64)
    measured = lyapunov_spectrum(field, x0, 4, horizon=10.0, steps=50)
    assert (measured.values < 0).all()
    assert (lyapunov_time(measured.maximal) == math.inf).all()


def test_maximal_exponent_of_strong_values_without_leak_is_positive():
    """Attention that looks everywhere alike, W_V = W_O = 1, no norm to speak of: the mean token grows as e^t."""
    field = VectorField(8, 2, 1.0, norm="center").double()
    torch.nn.init.zeros_(field.attention.q_proj.weight)
    torch.nn.init.zeros_(field.components["mlp"].body.down_proj.weight)
    for projection in (field.attention.v_proj, field.attention.o_proj):
        torch.nn.init.eye_(projection.weight)
    measured = maximal_exponent(field, torch.randn(3, 4, 8, dtype=torch.float64), horizon=5.0, steps=50, transient=8.0)
    torch.testing.assert_close(measured.maximal, torch.full((3,), 8 / 7).double(), rtol=1e-3, atol=0)


def test_anchor_sets_the_target_of_the_leak():
    """Measured in two parts, the second at the state and with the directions of the first: the same as in one."""
    field = VectorField(8, 2, 1.0, leak=1.0).double()
    x0 = torch.randn(2, 4, 8, dtype=torch.float64)
    whole = lyapunov_spectrum(field, x0, 2, horizon=4.0, steps=16)
    first = lyapunov_spectrum(field, x0, 2, horizon=2.0, steps=8)
    second = lyapunov_spectrum(
        field, first.state, 2, horizon=2.0, steps=8, anchor=x0, frame=first.frame, t0=first.times[-1]
    )
    torch.testing.assert_close((first.values + second.values) / 2, whole.values)
    torch.testing.assert_close(second.state, whole.state)
    assert second.times[-1] == whole.times[-1]


def test_transient_is_integrated_and_not_counted():
    field, x0 = linear([[0.5, 0.0], [0.0, -3.0]]), torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    frame = torch.tensor([[[1.0, 1.0]]], dtype=torch.float64)
    at_once = maximal_exponent(field, x0, horizon=2.0, steps=40, frame=frame)
    later = maximal_exponent(field, x0, horizon=2.0, steps=40, frame=frame, transient=5.03)
    expected = (0.5 * math.log(math.exp(2.0) + math.exp(-12.0)) - 0.5 * math.log(2.0)) / 2.0
    assert at_once.maximal.item() == pytest.approx(expected, abs=1e-4)
    assert later.maximal.item() == pytest.approx(0.5, abs=1e-4)
    assert later.state[0, 0].item() == pytest.approx(math.exp(0.5 * 7.03), rel=1e-4)
    assert later.times[-1] == pytest.approx(7.03)
    # What was lost at the beginning is what the error of the short measurement speaks of.
    assert 0.5 <= (0.5 - at_once.maximal.item()) / at_once.error.item() <= 2.0
    assert not at_once.converged
    assert later.converged


def test_perturbation_of_some_tokens_grows_at_their_rate():
    rates = torch.tensor([0.4, -0.6, -0.6, 0.1], dtype=torch.float64)
    x0 = torch.randn(2, 4, 3, dtype=torch.float64)
    for tokens, expected in ((slice(0, 1), 0.4), (slice(1, 3), -0.6), (slice(3, 4), 0.1)):
        measured = maximal_exponent(lambda x, t: rates[:, None] * x, x0, horizon=2.0, steps=20, tokens=tokens)
        torch.testing.assert_close(measured.maximal, torch.full((2,), expected).double(), rtol=1e-4, atol=0)
        outside = [token for token in range(4) if not tokens.start <= token < tokens.stop]
        assert (measured.frame[:, :, outside] == 0).all()


def test_samples_are_independent():
    field = VectorField(8, 2, 1.0).double()
    x0 = torch.randn(3, 4, 8, dtype=torch.float64)
    together = lyapunov_spectrum(field, x0, 2, horizon=2.0, steps=10)
    for n in range(3):
        alone = lyapunov_spectrum(field, x0[n : n + 1], 2, horizon=2.0, steps=10)
        torch.testing.assert_close(alone.values[0], together.values[n])
        torch.testing.assert_close(alone.error[0], together.error[n])


def test_diverging_sample_is_nan_and_others_are_unchanged():
    """x' = x^2 from 5 reaches infinity before t = 1; from -1 it does not."""
    x0 = torch.tensor([[-1.0], [5.0]], dtype=torch.float64)
    measured = maximal_exponent(lambda x, t: x * x, x0, horizon=4.0, steps=400)
    assert torch.isfinite(measured.values[:, 0]).tolist() == [True, False]
    assert not measured.converged[1]
    assert not torch.isfinite(measured.state[1]).any()
    # 1/T log (1 + T)^-2
    assert measured.maximal[0].item() == pytest.approx(-2 * math.log(5.0) / 4, rel=1e-3)
    spectrum = lyapunov_spectrum(lambda x, t: x * x, x0.expand(2, 2), 2, horizon=4.0, steps=400)
    assert torch.isfinite(spectrum.values).all(dim=1).tolist() == [True, False]


def test_drifting_exponent_has_not_converged():
    """v' = v / (1 + t) grows as 1 + t: 1/t log(1 + t) goes to zero, but slowly."""
    x0 = torch.ones(1, 1, dtype=torch.float64)
    measured = maximal_exponent(lambda x, t: x / (1.0 + t), x0, horizon=100.0, steps=500)
    assert not measured.converged
    assert measured.maximal.item() <= 2 * measured.error.item()


def test_lyapunov_spectrum_changes_nothing():
    field = VectorField(8, 2, dropout=0.3, attention_dropout=0.3)
    x0 = torch.randn(2, 4, 8)
    weights = {name: p.clone() for name, p in field.named_parameters()}
    state = torch.get_rng_state()
    start = x0.clone()
    once, again = (maximal_exponent(field, x0, horizon=1.0, steps=4) for _ in range(2))
    assert torch.equal(once.values, again.values)
    assert not torch.equal(once.values, maximal_exponent(field, x0, horizon=1.0, steps=4, seed=1).values)
    assert torch.equal(start, x0)
    assert field.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(weights[name], p) and p.grad is None for name, p in field.named_parameters())
    assert not once.values.requires_grad


def test_lyapunov_spectrum_accepts_float32():
    field = VectorField(8, 2, leak=1.0)
    x0 = torch.randn(2, 4, 8)
    single = lyapunov_spectrum(field, x0, 3, horizon=4.0, steps=40)
    double = lyapunov_spectrum(field.double(), x0.double(), 3, horizon=4.0, steps=40)
    assert single.state.dtype == torch.float32
    # A rate is the logarithm of a growth divided by h = 0.1.
    rounding = 100 * torch.finfo(torch.float32).eps / 0.1
    torch.testing.assert_close(single.values, double.values, rtol=0, atol=rounding)


def test_lyapunov_spectrum_accepts_one_number_per_sample():
    measured = maximal_exponent(lambda x, t: -x, torch.ones(3, dtype=torch.float64), horizon=1.0, steps=10)
    torch.testing.assert_close(measured.maximal, -torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)


def test_lyapunov_time_and_the_step_at_which_divergence_begins():
    exponents = torch.tensor([2.0, 0.5, 0.3, 0.1, 0.0, -1.0, math.nan])
    times = lyapunov_time(exponents)
    torch.testing.assert_close(times[:4], torch.tensor([0.5, 2.0, 10 / 3, 10.0]))
    assert times[4:6].tolist() == [math.inf, math.inf]
    assert math.isnan(times[6])
    # Steps of 0.5 up to t = 6: the Lyapunov times 0.5 and 2 are steps 1 and 4, 3.33 lies before step 7 at 3.5.
    assert divergence_step(exponents, steps=12, horizon=6.0).tolist() == [1, 4, 7, -1, -1, -1, -1]


def test_by_class_gives_mean_error_and_count():
    values, labels = torch.tensor([1.0, 2.0, 3.0, 7.0]), torch.tensor([4, 4, 4, 0])
    measured = by_class(values, labels)
    assert list(measured) == [0, 4]
    assert (measured[4].mean, measured[4].count) == (2.0, 3)
    assert measured[4].error == pytest.approx(1.0 / math.sqrt(3))
    assert (measured[0].mean, measured[0].error, measured[0].count) == (7.0, None, 1)
    assert list(by_class(values, torch.zeros(4, dtype=torch.long))) == [0]
    with pytest.raises(ValueError, match=r"expected one number and one class per sample"):
        by_class(values[:, None], labels)


def test_all_problems_are_reported_together():
    x0 = torch.zeros(2, 4, 3)
    with pytest.raises(ConfigError) as caught:
        lyapunov_spectrum(
            linear([[1.0]]),
            x0,
            5,
            horizon=0.0,
            steps=1,
            solver="tsit5",
            transient=-1.0,
            tokens=slice(0, 1),
            frame=torch.zeros(2, 4, 3),
        )
    beginnings = [problem.split("=")[0].split()[0] for problem in caught.value.problems]
    assert beginnings == ["Tsit5", "horizon", "transient", "steps", "frame", "frame", "k"]
