"""The equilibrium is the end of the trajectory, with the same weights."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from odevit import OdeViTForImageClassification
from odevit.core.base import Dynamics, Field
from odevit.core.field import VectorField
from odevit.core.ode_depth import OdeDepth
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, IntegrationError, OdeVitWarning
from odevit.systems.equilibrium import EquilibriumDepth
from odevit.train.evaluate import evaluate_batches
from odevit.train.runner import compile_field
from tests.tiny import tiny_images, tiny_model

RESTING = {"norm": "layer", "leak": 1.0, "solver": "lie_trotter", "steps": 8, "horizon": 6.0}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return tiny_model(**RESTING)


@pytest.fixture
def images():
    torch.manual_seed(1)
    return tiny_images(6)


def test_equilibrium_equals_the_end_of_a_long_trajectory(model, images):
    with torch.no_grad():
        far = model(images, steps=400, horizon=300.0)  # the model's own step of 0.75
        rest = model(images, depth="equilibrium")
    torch.testing.assert_close(rest.logits, far.logits, rtol=1e-2, atol=1e-3)
    assert rest.trajectory.ok
    assert (rest.trajectory.residual <= 1e-4).all()
    assert rest.trajectory.status.startswith("At rest after")
    assert int(rest.trajectory.evaluations.max()) < 100


def test_velocity_at_the_exponential_euler_equilibrium_is_zero(model, images):
    with torch.no_grad():
        rest = model(images, depth="equilibrium", solver="exponential_euler").trajectory.state
        x0 = model.odevit.embedding(images)
        speed = model.odevit.depth.field(rest, x0=x0).flatten(1).norm(dim=1) / rest.flatten(1).norm(dim=1)
    assert (speed < 1e-3).all()


def test_checkpoint_loads_as_ode_and_as_equilibrium(model, images, tmp_path):
    model.save_pretrained(tmp_path / "ode")
    rest = OdeViTForImageClassification.from_pretrained(tmp_path / "ode", depth="equilibrium").eval()
    assert isinstance(rest.odevit.depth, EquilibriumDepth)
    options = {"search": "broyden", "gradient": "phantom"}
    searching = tiny_model(**RESTING, depth="equilibrium", depth_options=options)
    searching.load_state_dict(model.state_dict())
    searching.save_pretrained(tmp_path / "rest")
    ode = OdeViTForImageClassification.from_pretrained(tmp_path / "rest", depth="ode").eval()
    assert isinstance(ode.odevit.depth, OdeDepth)
    with torch.no_grad():
        torch.testing.assert_close(rest(images).logits, model(images, depth="equilibrium").logits)
        torch.testing.assert_close(rest(images, depth="ode").logits, model(images).logits)
        torch.testing.assert_close(ode(images).logits, model(images).logits)
        far = ode(images, steps=400, horizon=300.0).logits
        torch.testing.assert_close(searching(images).logits, far, rtol=1e-2, atol=1e-3)


def test_call_with_depth_equilibrium_does_not_change_the_model(model, images):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    model(images, depth="equilibrium")
    assert isinstance(model.odevit.depth, OdeDepth)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


def test_equilibrium_without_rest_point_reports_failure(images):
    torch.manual_seed(0)
    drifting = tiny_model(**{**RESTING, "leak": 0.0})
    with torch.no_grad():
        solution = drifting(images, depth="equilibrium", steps=10, on_failure="ignore").trajectory
    assert not solution.ok
    assert "No rest point was found for 6 of 6 samples in 10 evaluations" in solution.status
    assert (solution.residual > 1e-2).all()
    assert torch.isfinite(solution.state).all()
    assert solution.unsettled.all()
    with (
        pytest.raises(IntegrationError, match="No rest point was found for 6 of 6"),
        pytest.warns(OdeVitWarning, match="has no leak"),
    ):
        drifting.train()(images, depth="equilibrium", steps=10)


@torch.no_grad()
def test_short_steps_tighten_the_tolerance_in_proportion(images):
    torch.manual_seed(0)
    drifting = tiny_model(**{**RESTING, "leak": 0.0, "steps": 200})
    solution = drifting(images, depth="equilibrium", on_failure="ignore").trajectory
    assert (solution.residual < 1e-2).all(), "small for a step of the usual length"
    assert solution.unsettled.all()
    assert "No rest point was found for 6 of 6" in solution.status


def test_evaluate_batches_counts_unsettled_samples_of_all_batches(images):
    torch.manual_seed(0)
    drifting = tiny_model(**{**RESTING, "leak": 0.0}, depth="equilibrium")
    labels = torch.arange(6) % 3
    batches = [{"pixel_values": images[part], "labels": labels[part]} for part in (slice(2), slice(2, 6))]
    score = evaluate_batches(drifting, batches)
    assert score.unsettled == 1.0
    assert "No rest point was found for 2 of 2 samples" in score.warning
    assert score.warning.endswith("In all, 100.0% of the 6 images.")
    assert evaluate_batches(tiny_model(**RESTING), batches).warning == ""


@torch.no_grad()
def test_status_counts_samples_above_the_tolerance():
    depth, x0, _ = small(iterations=1)
    solution = depth(x0)
    assert solution.ok
    assert not solution.unsettled.any()
    assert (solution.residual > depth.tolerance).all()
    assert solution.status.startswith("Not all at rest after 7 evaluations: 4 of 4 samples used up 1 evaluations near")
    assert small()[0](x0).status.startswith("At rest after ")


def test_equilibrium_refuses_trajectory_options(model, images):
    with pytest.raises(ConfigError, match="a rest point has none"):
        model(images, depth="equilibrium", horizon=3.0)
    with pytest.raises(ConfigError, match="need a trajectory"):
        model(images, depth="equilibrium", save="all")
    with pytest.raises(ConfigError, match="dopri5 has no step of fixed size to iterate; pass solver=exponential_euler"):
        model(images, depth="equilibrium", solver="dopri5")
    with pytest.raises(ValueError, match="share no field"):
        tiny_model(depth="stacked")(images, depth="equilibrium")


@torch.no_grad()
def test_equilibrium_of_a_dopri5_model_needs_a_fixed_step_solver(images):
    torch.manual_seed(0)
    model = tiny_model(**RESTING | {"solver": "dopri5", "tolerance": 1e-6})
    with pytest.raises(ConfigError, match=r"has 1 problem:\n.*pass solver=exponential_euler"):
        model(images, depth="equilibrium")
    rest = model(images, depth="equilibrium", solver="exponential_euler")
    assert rest.trajectory.ok
    far = model(images, horizon=300.0)
    torch.testing.assert_close(rest.logits, far.logits, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", [True, "add"])
def test_equilibrium_refuses_time_conditioned_fields(images, kind):
    settings = {**RESTING, "time_conditioned": kind}
    asked, trained = tiny_model(**settings), tiny_model(**settings, depth="equilibrium").train()
    with torch.no_grad(), pytest.raises(ConfigError, match=r"depends on time at all times.*use depth='ode'"):
        asked(images, depth="equilibrium")
    with pytest.raises(ConfigError, match=r"has 1 problem:\n.*train a model without time_conditioned"):
        trained(images)


def test_equilibrium_depth_without_a_model_finds_zero_velocity():
    torch.manual_seed(0)
    depth = EquilibriumDepth(
        lambda: VectorField(16, 2, 1.0, leak=1.0), SolverConfig("exponential_euler", 4, 4.0)
    ).eval()
    x0 = torch.randn(2, 5, 16)
    solution = depth(x0)
    torch.testing.assert_close(depth.field(solution.state, x0=x0), torch.zeros_like(x0), rtol=0, atol=5e-3)


@pytest.mark.parametrize("blend", ["linear", "constant"])
def test_equilibrium_of_knots_is_that_of_the_last_knot(images, blend):
    torch.manual_seed(3)
    model = tiny_model(**RESTING | {"knots": 7, "blend": blend})
    for weight in model.odevit.depth.field.knots.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    with torch.no_grad():
        rest = model(images, depth="equilibrium", solver="exponential_euler").trajectory.state
        x0 = model.odevit.embedding(images)
        speed = model.odevit.depth.field.knots[-1](rest, x0=x0).flatten(1).norm(dim=1) / rest.flatten(1).norm(dim=1)
        far = model(images, steps=400, horizon=300.0, solver="exponential_euler").trajectory.state
    assert (speed < 1e-3).all()
    torch.testing.assert_close(rest, far, rtol=1e-2, atol=1e-2)


def test_equilibrium_of_a_fading_field_is_the_end_of_its_trajectory(images):
    model = tiny_model(**RESTING | {"knots": 2, "leak": 0.0, "fade": 0.2})
    with torch.no_grad():
        rest, far = model(images, depth="equilibrium"), model(images, steps=16, horizon=12.0)
    torch.testing.assert_close(rest.logits, far.logits, rtol=1e-5, atol=1e-5)
    assert rest.trajectory.ok


def small(**options):
    """An equilibrium in double precision, an image's tokens, and weights that make a loss of the state."""
    torch.manual_seed(0)
    solver_config = SolverConfig("exponential_euler", 4, 4.0)
    depth = EquilibriumDepth(lambda: VectorField(16, 2, 1.0, leak=1.0), solver_config, **options).double().eval()
    return depth, torch.randn(4, 5, 16, dtype=torch.float64), torch.randn(4, 5, 16, dtype=torch.float64)


def gradient(x0, weights, depth):
    x0 = x0.clone().requires_grad_()
    loss = (depth(x0).state * weights).sum()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [x0, *depth.parameters()])])


def test_implicit_unrolled_and_phantom_gradients_agree():
    precise = {"tolerance": 1e-9, "iterations": 300}
    found = {
        name: gradient(x0, weights, depth)
        for name, (depth, x0, weights) in {
            "implicit": small(**precise),
            "unrolled": small(gradient="unrolled", **precise),
            "broyden": small(search="broyden", **precise),
            "newton_krylov": small(search="newton_krylov", **precise),
            **{k: small(gradient="phantom", phantom_steps=k, **precise) for k in (1, 3, 30)},
            "damped": small(gradient="phantom", phantom_steps=60, damping=0.5, **precise),
        }.items()
    }
    exact = found.pop("unrolled")
    errors = {name: ((found[name] - exact).norm() / exact.norm()).item() for name in found}
    assert max(errors[name] for name in ("implicit", "broyden", "newton_krylov")) < 1e-4
    assert errors[1] > errors[3] > errors[30]
    assert max(errors[30], errors["damped"]) < 1e-4


def test_saved_tensors_do_not_grow_with_iterations():
    def kept(**options):
        depth, x0, _ = small(tolerance=1e-12, **options)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
            taken = depth(x0).stats.steps
        return len(saved), taken

    few, many = kept(iterations=8), kept(iterations=60)
    assert few[0] == many[0]
    assert few[1] == 8 < many[1], "the search was longer"
    assert kept(iterations=60, gradient="unrolled")[0] > 5 * kept(iterations=8, gradient="unrolled")[0] > few[0]
    assert kept(gradient="phantom", iterations=8)[0] == kept(gradient="phantom", iterations=60)[0]


def test_state_with_gradient_equals_state_without():
    for name in ("implicit", "phantom"):
        depth, x0, _ = small(gradient=name)
        with torch.no_grad():
            bare = depth(x0)
        assert bare.costs == {}
        torch.testing.assert_close(depth(x0).state.detach(), bare.state, rtol=1e-12, atol=1e-12)


def test_dropout_has_one_mask_for_the_whole_search():
    """With a new mask at every evaluation there would be no fixed point."""
    torch.manual_seed(0)
    field = VectorField(16, 2, 1.0, leak=1.0, attention_dropout=0.3, output_dropout=0.3).double()
    depth = EquilibriumDepth(lambda: field, SolverConfig("exponential_euler", 4, 4.0), tolerance=1e-8).train()
    x0 = torch.randn(4, 5, 16, dtype=torch.float64)
    first, second = depth(x0), depth(x0)
    assert first.ok
    assert (first.residual <= 1e-8).all()
    assert not torch.allclose(first.state, second.state)


class Drifting(Field):
    """dx/dt = w tanh(x) - (x - x0), and x0 + w for a sample that begins above 5: that one has no rest point."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def dynamics(self, x0):
        drifts = x0[:, :1] > 5
        return Dynamics(
            {"all": lambda x, t, _: torch.where(drifts, x + self.w, self.w * torch.tanh(x))}, anchor=x0, leak=1.0
        )


def test_unsettled_samples_in_training_warn_and_get_step_gradients():
    depth = EquilibriumDepth(Drifting, SolverConfig("euler", 10, 1.0), phantom_steps=5).train()
    x0 = torch.tensor([[0.5, 1.0], [9.0, 9.0], [1.0, 2.0]], dtype=torch.float64)

    def gradients(x0):
        state = depth(x0).state
        return torch.autograd.grad(state[:, 0].sum() + state[0].sum(), depth.parameters())[0]

    for gradient, steps in (("implicit", 1), ("phantom", 5)):
        depth.gradient = gradient
        with pytest.warns(OdeVitWarning, match="did not come to rest in training"):
            solution, learned = depth(x0), gradients(x0)
        drift = steps * 0.1  # d(0.1 w)/dw for every step of 0.1
        torch.testing.assert_close(learned, gradients(x0[[0, 2]]) + drift, rtol=1e-3, atol=1e-3)
        assert "No rest point was found for 1 of 3 samples in 60 evaluations" in solution.notice
        assert solution.notice in solution.status
        assert solution.unsettled.tolist() == [False, True, False]
        assert solution.failure is None
    assert solution.residual[1] > 1e-2 > 1e-3 > solution.residual[[0, 2]].max()
    assert torch.isfinite(solution.state).all()
    assert "No rest point was found for 3 of 3 samples" in depth(x0 + 9.0).failure
    assert "No rest point was found for 1 of 3 samples" in depth.eval()(x0).status


def test_jacobian_option_adds_the_frobenius_norm_to_the_costs():
    depth, x0, _ = small(jacobian=0.5)
    assert depth.eval()(x0).costs == {}
    few = x0.expand(4, -1, -1)[:1].expand(2000, -1, -1).contiguous()
    solution = depth.train()(few)
    state, dynamics = solution.state[:1].detach(), depth.field.dynamics(x0[:1]).with_attention_hook(lambda _: None)
    dense = torch.func.jacfwd(lambda x: dynamics.forcing(x, 0.0))(state)
    assert solution.costs["jacobian"].item() == pytest.approx(0.5 * dense.square().sum().item() / 80, rel=0.05)
    optimiser = torch.optim.SGD(depth.parameters(), lr=0.5)
    for _ in range(10):
        optimiser.zero_grad()
        depth(x0).costs["jacobian"].backward()
        optimiser.step()
    assert depth(few).costs["jacobian"] < 0.7 * solution.costs["jacobian"]


def test_invalid_equilibrium_options_are_named():
    options = {"search": "newton", "gradient": "none", "damping": 0, "phantom_steps": 0, "tolerance": 1.0}
    with pytest.raises(ConfigError) as caught:
        tiny_model(depth="equilibrium", depth_options=options | {"serch": "broyden"})
    named = [problem.split("=")[0].removeprefix("depth_options.") for problem in caught.value.problems[:-1]]
    assert sorted(named) == sorted(options)
    assert "Did you mean 'search'?" in caught.value.problems[-1]
    moving = tiny_model(**RESTING, depth="equilibrium", knots=3).train()
    with pytest.raises(ConfigError, match=r"would have a gradient; train with depth='ode', or with depth.gradient"):
        moving(tiny_images())


def test_tolerance_is_raised_to_the_rounding_error_under_autocast():
    depth, x0, _ = small(tolerance=1e-5)
    depth, x0 = depth.float(), x0.float()
    with torch.no_grad():
        exact = depth(x0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = depth(x0)
    assert exact.residual.max() <= 1e-5
    assert rounded.failure is None
    assert 1e-5 < rounded.residual.max() < torch.finfo(torch.bfloat16).eps
    assert rounded.evaluations.max() <= exact.evaluations.max()


@pytest.mark.parametrize("donated", [True, False])
def test_compiled_field_gives_the_same_implicit_gradient(donated):
    """The field runs compiled, or eagerly if compiled graphs donate their buffers."""
    depth, x0, weights = small()
    plain, passes = gradient(x0, weights, depth), {"forward": 0, "backward": 0}

    def counted(name):
        def compiled(graph, _):
            passes[name] += 1
            return make_boxed_func(graph)

        return compiled

    torch._dynamo.reset()
    compile_field(depth, backend=aot_autograd(fw_compiler=counted("forward"), bw_compiler=counted("backward")))
    with torch._functorch.config.patch(donated_buffer=donated):
        found = gradient(x0, weights, depth)
    assert passes["forward"] > 0
    assert (passes["backward"] == 0) == donated
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("gradient", ["implicit", "phantom", "unrolled"])
def test_compiled_equilibrium_model_gives_the_same_gradients(gradient, images):
    options = {"gradient": gradient, "iterations": 40}
    model, labels = tiny_model(**RESTING, depth="equilibrium", depth_options=options).train(), torch.arange(6) % 3
    plain = torch.autograd.grad(model(images, labels).loss, list(model.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    found = torch.autograd.grad(compiled(images, labels).loss, list(model.parameters()))
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
