"""Guided trajectories and fitted time grids."""

import pytest
import torch

from odevit.analysis.fitted_grid import fit_grid
from odevit.analysis.guidance import guided
from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError
from tests.tiny import tiny_images, tiny_model


@pytest.mark.parametrize("settings", [{"leak": 1.0}, {"leak": 0.0, "knots": 3, "steps": 4}])
def test_guided_raises_the_class_and_strength_0_changes_nothing(settings):
    torch.manual_seed(0)
    model, images = tiny_model(**settings), tiny_images(4)
    still, towards, away = (guided(model, images, 1, strength) for strength in (0.0, 0.5, -0.5))
    torch.testing.assert_close(still.guided, still.logits)
    torch.testing.assert_close(still.logits, model(images).logits.detach(), rtol=1e-5, atol=1e-5)
    assert (still.change == 0).all()
    assert (towards.raised > 0).all()
    assert (away.raised < 0).all()
    assert towards.change.shape == (4, *model.layout().grid)
    assert (guided(model, images, 1, 2.0).shift > towards.shift).all(), "a stronger push changes more"
    assert all(parameter.requires_grad for parameter in model.parameters()), "left as it was"


@pytest.mark.parametrize("solver", [name for name in SOLVERS if issubclass(SOLVERS[name], FixedStepSolver)])
@pytest.mark.parametrize(
    "settings", [{"leak": 1.0}, {"leak": 0.0, "fade": 0.5, "knots": 3}, {"knots": 3, "blend": "constant"}]
)
def test_guided_keeps_the_solver_steps(solver, settings):
    """Not one bit without strength, and little with little: a splitting has no further part in either."""
    torch.manual_seed(0)
    model, images = tiny_model(solver=solver, steps=6, horizon=3.0, **settings), tiny_images(2)
    still, faint, weak = (guided(model, images, 1, strength) for strength in (0.0, 1e-2, 2e-2))
    assert torch.equal(still.guided, still.logits)
    assert (still.change == 0).all()
    torch.testing.assert_close(weak.shift / faint.shift, torch.full_like(weak.shift, 2.0), rtol=0.1, atol=0)


def test_guided_refuses_bad_labels_and_adaptive_solvers():
    with pytest.raises(ConfigError) as caught:
        guided(tiny_model(solver="dopri5"), tiny_images(), 99)
    assert "label=99" in str(caught.value)
    assert "chooses its own steps" in str(caught.value)


def test_fit_grid_beats_the_uniform_grid_on_other_images():
    torch.manual_seed(0)
    model = tiny_model(leak=3.0, solver="euler", steps=6, horizon=3.0)
    solver_config = model.solver_config
    fitted = fit_grid(model, tiny_images(4))
    assert fitted.error < 0.8 * fitted.uniform_error
    torch.manual_seed(5)
    others = model.embed(torch.randn(4, *tiny_images().shape[1:])).detach()
    end = model.follow(others, solver_config.replace(steps=200)).state
    errors = [
        (model.follow(others, solver_config.replace(grid=grid)).state - end).norm() for grid in ("uniform", fitted.grid)
    ]
    assert errors[1] < errors[0]
    with pytest.raises(ConfigError, match="steps=1"):
        fit_grid(model, tiny_images(), SolverConfig("euler", 1, 1.0))
    with pytest.raises(ValueError, match="it has no trajectory"):
        fit_grid(tiny_model(depth="equilibrium", leak=1.0), tiny_images())


def test_saved_model_keeps_its_grid(tmp_path):
    model = tiny_model(grid=[0.0, 0.1, 0.5, 1.0], steps=3, solver="heun")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.solver_config == model.solver_config
    x0 = model.embed(tiny_images())
    found = again.follow(x0, save="all")
    assert found.times == pytest.approx(
        [0.0, 0.1 * model.solver_config.horizon, 0.5 * model.solver_config.horizon, model.solver_config.horizon]
    )
    first = solve(model.field, x0, solver="heun", steps=1, t1=0.1 * model.solver_config.horizon).state
    torch.testing.assert_close(found.states[1], first)
