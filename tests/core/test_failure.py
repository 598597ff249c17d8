"""A failed integration warns in evaluation and raises in training."""

import warnings

import pytest
import torch

from odevit import OdeViTForImageClassification, get_ode_model
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, IntegrationError, IntegrationWarning
from odevit.solvers.adaptive import Tsit5
from tests.tiny import tiny_config, tiny_images, tiny_model

MAX_STEPS_1 = {"solver_config": SolverConfig(Tsit5(max_steps=1), 1, 5.0)}
LABELS = torch.tensor([0, 1, 2])


def exploding():
    """Finite weights and an infinite state."""
    model = tiny_model(leak=0.0, residual_scale=1.0)
    with torch.no_grad():
        for branch in model.depth.field.components.values():
            branch.residual_scale.fill_(torch.finfo(torch.float32).max)
    return model


def student():
    return get_ode_model(tiny_model(depth="stacked", leak=0.0, steps=2))


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (tiny_model, MAX_STEPS_1, "after max_steps = 1"),
        (lambda: student().eval(), MAX_STEPS_1, "after max_steps = 1"),
        (exploding, {}, "is not finite"),
        (lambda: tiny_model(leak=0.0), {"depth": "equilibrium", "steps": 2}, "No rest point"),
    ],
)
def test_failed_integration_warns_once_in_evaluation_and_raises_if_asked(make, options, words):
    model, images = make(), tiny_images()
    with pytest.warns(IntegrationWarning, match=words) as caught:
        output = model(images, **options)
    assert len(caught) == 1, "one for the whole batch"
    assert words in output.trajectory.status
    with pytest.raises(IntegrationError, match=words):
        model(images, on_failure="raise", **options)
    model.config.on_failure = "raise"
    with pytest.raises(IntegrationError, match=words):
        model(images, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images, on_failure="ignore", **options)


def test_failed_integration_raises_in_training():
    for model, options in ((tiny_model(), MAX_STEPS_1), (exploding(), {}), (student(), MAX_STEPS_1)):
        with pytest.raises(IntegrationError, match="lower the learning rate"):
            model.train()(tiny_images(), labels=LABELS, **options)
    with pytest.warns(IntegrationWarning):
        exploding().train()(tiny_images(), labels=LABELS, on_failure="warn")


@pytest.mark.parametrize("make", [tiny_model, lambda: tiny_model().train(), lambda: student().eval(), student])
def test_successful_integration_gives_no_warning_and_no_error(make, recwarn):
    model = make()
    solution = model(tiny_images(), labels=LABELS).trajectory
    assert not [each for each in recwarn if issubclass(each.category, IntegrationWarning)]
    assert solution.ok
    assert solution.time == pytest.approx(model.solver_config.horizon)
    assert solution.status.startswith(f"Reached t = {solution.time:g} in {model.solver_config.steps} steps")
    # The same check does warn of the same model when its state is not finite.
    with torch.no_grad():
        next(iter(model.field.parameters())).fill_(torch.nan)
    with pytest.raises(IntegrationError):
        model(tiny_images(), labels=LABELS, on_failure="raise")


def test_on_failure_is_saved_and_unknown_values_are_refused(tmp_path):
    tiny_model(on_failure="raise").save_pretrained(tmp_path)
    assert OdeViTForImageClassification.from_pretrained(tmp_path).config.on_failure == "raise"
    with pytest.raises(ConfigError, match="on_failure='rise'; expected one of raise, warn, ignore"):
        tiny_config(on_failure="rise")
    with pytest.raises(ValueError, match="on_failure='rise'"):
        tiny_model()(tiny_images(), on_failure="rise")


def test_failure_check_is_skipped_in_compile_export_and_vmap():
    """A fullgraph compilation has no graph break, and tensors in vmap have no values."""
    model, images = exploding(), tiny_images()
    with warnings.catch_warnings():
        warnings.simplefilter("error", IntegrationWarning)
        torch.compile(model, backend="eager", fullgraph=True)(images)
        torch.export.export(model, (images,))
        torch.vmap(lambda image: model(image[None]).logits[0])(images)


def test_half_precision_model_runs_with_adaptive_solver():
    """The error in units of the tolerance must not overflow in half precision."""
    model, images = tiny_model(horizon=6.0, solver="tsit5"), tiny_images()
    expected = model(images).logits
    output = model.half()(images, on_failure="raise")
    assert output.stats.rejected < output.stats.steps < 1000
    assert (output.logits - expected).abs().max() < 50 * torch.finfo(torch.float16).eps * expected.abs().max()
