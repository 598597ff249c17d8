"""Exponents at rest: of linear fields, of doubtful signs, in report and benchmark."""

import pytest
import torch
from benchmarks import attractor

from odevit.analysis import settling as rest
from odevit.analysis.lyapunov import with_fixed_steps
from odevit.analysis.settling import integrate_to_rest, measure_exponents, measure_spectrum, path_exponents
from odevit.core.solver_config import SolverConfig
from odevit.report.study import Study
from tests.report.small import Linear, images, sample_of
from tests.tiny import tiny_model


def diagonal(*rates):
    return Linear(torch.diag(torch.tensor(rates, dtype=torch.float64)))


def states(count, dim):
    return torch.randn(count, 1, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_measure_exponents_at_rest_gives_the_slowest_direction():
    """Along a short path a random direction grows like a mixture; at rest, having turned, like the slowest one."""
    x0 = states(3, 2)
    path, calm = measure_exponents(
        diagonal(-0.5, -3.0), SolverConfig("rk4", 40, 2.0), [x0[:2], x0[2:]], [x0[:2], x0[2:]]
    )
    torch.testing.assert_close(calm.values, torch.full((3,), -0.5, dtype=torch.float64), rtol=1e-4, atol=0)
    assert (path.values < calm.values - 1e-3).all()
    assert (calm.negative.hits, calm.not_converged.hits, calm.prolonged.sum()) == (3, 0, 0)
    assert calm.mean == pytest.approx(-0.5, rel=1e-4)
    # Measured from FAR horizons on, for COUNTED horizons after TURNING ones.
    start, horizon = rest.FAR + rest.TURNING, 2.0
    assert calm.times[0] == pytest.approx(horizon * start + horizon / 40)
    assert calm.times[-1] == pytest.approx(horizon * (start + rest.COUNTED))


def test_measure_exponents_prolongs_a_few_doubtful_images(monkeypatch):
    monkeypatch.setattr(rest, "DOUBTFUL", 3)
    x0 = states(4, 2)
    _, calm = measure_exponents(diagonal(0.25, -2.0), SolverConfig("rk4", 20, 1.0), [x0[:2], x0[2:]], [x0[:2], x0[2:]])
    assert calm.prolonged.tolist() == [True, True, True, False]
    torch.testing.assert_close(calm.values, torch.full((4,), 0.25, dtype=torch.float64), rtol=1e-2, atol=0)
    assert calm.negative.value == 0.0
    assert calm.largest == pytest.approx(0.25, rel=1e-2)


def test_measure_spectrum_begins_with_the_largest():
    x0 = states(2, 3)
    solver_config = SolverConfig("rk4", 60, 3.0)
    _, calm = measure_spectrum(diagonal(-0.5, -1.0, -2.0), solver_config, x0, x0, 2)
    expected = torch.tensor([[-0.5, -1.0]] * 2, dtype=torch.float64)
    torch.testing.assert_close(calm.values, expected, rtol=1e-2, atol=0)


def test_path_exponents_of_one_token():
    """Two tokens that do not see each other, and a field that acts on both alike but for their coordinates."""
    x0 = torch.randn(2, 3, 2, dtype=torch.float64)
    found = path_exponents(diagonal(-1.0, -1.0), SolverConfig("rk4", 10, 1.0), [x0], slice(1, 2))
    torch.testing.assert_close(found.values, torch.full((2,), -1.0, dtype=torch.float64), rtol=1e-4, atol=0)


def test_with_fixed_steps_replaces_an_adaptive_solver():
    assert with_fixed_steps(SolverConfig("dopri5", 6, 2.0)) == SolverConfig("rk4", 6, 2.0)
    assert with_fixed_steps(SolverConfig("strang", 6, 2.0)) == SolverConfig("strang", 6, 2.0)


def test_largest_exponents_count_nan_as_not_negative():
    x0 = states(2, 2)
    validate = torch.stack([x0[0], torch.full_like(x0[1], torch.nan)])
    _, calm = measure_exponents(diagonal(-1.0, -2.0), SolverConfig("rk4", 10, 1.0), [x0], [validate])
    assert calm.negative.hits == 1
    assert calm.not_converged.hits >= 1
    assert calm.mean == pytest.approx(-1.0, rel=1e-2)


def test_report_and_measure_exponents_give_the_same_share():
    model = tiny_model(steps=3, horizon=1.5, leak=0.2, norm="layer")
    batches = images(6)
    study = Study("run", model, sample_of(model, batches))
    with torch.no_grad():
        numbers, limits = attractor.exponents(model, batches)
        rests = [integrate_to_rest(model, model.embed(batch["pixel_values"])) for batch in batches]
    for ours, theirs in zip(study.forward_cache.rest, rests, strict=True):
        torch.testing.assert_close(ours, theirs)
    _, calm = study.exponents
    assert numbers["own"]["negative"] == calm.negative.value
    assert numbers["own"]["mean"] == pytest.approx(calm.mean)
    assert numbers["own"]["largest"] == pytest.approx(calm.largest)
    assert limits.images == 6
