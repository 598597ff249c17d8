"""The loss of a distillation: what it compares and which weights have gradients."""

import copy
from dataclasses import replace

import pytest
import torch

from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.distill.alignment import Alignment
from odevit.distill.distill_task import check_pooled
from odevit.distill.loss import LayerDistillation
from odevit.distill.objective import DistillObjective
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.objectives import jasmin
from odevit.objectives.matching import path_matching
from odevit.surgery.block_locator import head_parameters
from odevit.surgery.surgery import get_ode_model
from tests.tiny import tiny_images, tiny_model
from tests.zoo import images as photographs
from tests.zoo import make

LAYERS = 3


def made(objective=None, **student):
    original = tiny_model(depth="stacked", steps=LAYERS, bias=True)
    teacher = Teacher(original)
    pupil = get_ode_model(teacher.model, **{"steps": 6, "horizon": 3.0, "mlp_ratio": 2.0, **student})
    alignment = Alignment("uniform", (1.0,) * LAYERS)
    return LayerDistillation(pupil, teacher, alignment, objective or DistillObjective()).train()


def test_loss_of_a_perfect_student_is_zero():
    """A teacher whose blocks are all equal is a Lie-Trotter solution of its own block: the averaged field is exact."""
    original = tiny_model(depth="stacked", steps=LAYERS, bias=True, num_register_tokens=0)
    for layer in original.odevit.depth.layers[1:]:
        layer.load_state_dict(original.odevit.depth.layers[0].state_dict())
    teacher = Teacher(original)
    student = get_ode_model(teacher.model, steps=LAYERS, horizon=3.0, mlp_ratio=2.0, init="average")
    network = LayerDistillation(student, teacher, Alignment("uniform", (1.0,) * LAYERS), DistillObjective()).train()
    images = tiny_images()
    # Squares of differences that are rounding alone: some hundred operations on numbers of this size.
    size = max(state.abs().max().item() for state in teacher.states(images))
    rounding = 100 * torch.finfo(torch.float32).eps * size
    parts = network(images).parts
    assert parts["path"].item() < 2 * rounding**2
    # A sum of p (log p - log q) with both logarithms rounded.
    logs = teacher(images).logits.log_softmax(-1).abs().max().item()
    assert abs(parts["logits"].item()) < 32 * torch.finfo(torch.float32).eps * logs


def test_path_loss_compares_states_at_the_aligned_steps():
    network, images = made(DistillObjective(cls=0.3, patches=0.7, logits=0.0)), tiny_images()
    states = network.student.states(images, save=[2, 4, 6]).states
    layers = network.teacher.states(images)[1:]
    expected = path_matching(states, layers, network.teacher.layout(images), cls=0.3, patches=0.7)["loss"]
    torch.testing.assert_close(network(images).loss, expected)


def test_path_last_compares_only_the_last_state():
    network, images = made(DistillObjective(path="last", patches=0.0, logits=0.0)), tiny_images()
    state = network.student.states(images, save=[6]).states[0]
    expected = (state[:, 0] - network.teacher.states(images)[-1][:, 0]).square().mean()
    torch.testing.assert_close(network(images).loss, expected)


def test_path_last_beyond_the_horizon_compares_with_the_last_layer():
    network, images = made(DistillObjective(path="last", patches=0.0, logits=0.0)), tiny_images()
    trajectory = network.student.states(images, steps=12, horizon=6.0, save=[6, 12]).states
    last = network.teacher.states(images)[-1]
    expected = torch.stack([(state[:, 0] - last[:, 0]).square().mean() for state in trajectory]).mean()
    torch.testing.assert_close(network(images, solver_config=SolverConfig("lie_trotter", 12, 6.0)).loss, expected)


def test_layers_are_matched_within_the_horizon_when_integrating_beyond():
    """Three layers in six steps of the student's own horizon, then held: the checkpoints are 2, 4, 6 and the last."""
    network, images = made(DistillObjective(logits=0.0)), tiny_images()
    states = network.student.states(images, steps=9, horizon=4.5, save=[2, 4, 6, 9]).states
    layers = network.teacher.states(images)
    expected = path_matching(states, [*layers[1:], layers[-1]], network.teacher.layout(images), patches=1.0)["loss"]
    torch.testing.assert_close(
        network(images, solver_config=network.student.solver_config.stretched(1.5)).loss, expected
    )


def test_loss_refuses_a_horizon_shorter_than_the_students():
    with pytest.raises(ValueError, match=r"end before the student's horizon 3.*expected a horizon at least as long"):
        made()(tiny_images(), solver_config=SolverConfig("lie_trotter", 6, 1.5))


@pytest.mark.parametrize("scale", ["none", "state", "increment"])
def test_compiled_layer_error_has_the_same_gradients(scale):
    step = made(DistillObjective(scale=scale, patches=0.5))
    pixels = tiny_images(3)
    gradients = []
    for compiled in (False, True):
        if compiled:
            step.compile_layer_error(backend="aot_eager")
        step.zero_grad()
        step(pixels).loss.backward()
        gradients.append([weight.grad.clone() for weight in step.student.field.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_teacher_forced_segments_start_at_the_teachers_states():
    network, images = made(DistillObjective(logits=0.0, teacher_forcing=0.5)), tiny_images()
    layers = network.teacher.states(images)
    dynamics = network.student.field.dynamics(layers[0])
    stretches = network._teacher_forced_states(layers, {2: 1, 4: 2, 6: 3}, network.student.solver_config)
    expected = solve(dynamics, layers[1], solver="lie_trotter", steps=2, t0=1.0, t1=2.0).state
    torch.testing.assert_close(stretches[1], expected)
    teacher_forcing = network(images).loss
    network.progress = 0.6
    assert not torch.allclose(teacher_forcing, network(images).loss), "after that it goes on its own"


def rotary(**student):
    """A student with positions of its own, as large as its tokens, whose teacher gets them inside attention."""
    teacher = Teacher(make("dinov3"))
    pupil = get_ode_model(
        teacher.model, **{"steps": 6, "horizon": 3.0, "leak": 0.5, "positions": True, "rope_theta": 0.0, **student}
    )
    torch.nn.init.normal_(pupil.encoder.positions)
    alignment = Alignment("uniform", (1.0,) * LAYERS)
    return LayerDistillation(pupil, teacher, alignment, DistillObjective(logits=0.0, teacher_forcing=0.5)).train()


def test_teacher_forced_segments_join_to_the_rollout():
    """Were the teacher's states those that the student meets on its own, forcing it there would change nothing."""
    network, images = rotary(), photographs()
    path = network.student.states(images).states
    h0 = network.student.tokens(images)
    stretches = network._teacher_forced_states(
        (h0, path[2], path[4], path[6]), {2: 1, 4: 2, 6: 3}, network.student.solver_config
    )
    torch.testing.assert_close(stretches, [path[2], path[4], path[6]])


def test_positions_are_added_only_to_the_first_segment():
    """In another width and with registers of its own: [P h_0 + p; r], then [P h_l; r]."""
    network, images = rotary(hidden_size=16, registers=2), photographs()
    encoder, layers = network.student.encoder, network.teacher.states(images)
    first, own = encoder.encode_tokens(layers[0]), encoder.registers.expand(2, -1, -1)
    starts = [first, *(torch.cat([encoder.in_proj(h), own], dim=1) for h in layers[1:3])]
    dynamics = encoder.field.dynamics(first)
    expected = [
        encoder.decode_tokens(solve(dynamics, z, solver="lie_trotter", steps=2, t0=float(n), t1=n + 1.0).state)
        for n, z in enumerate(starts)
    ]
    stretches = network._teacher_forced_states(layers, {2: 1, 4: 2, 6: 3}, network.student.solver_config)
    torch.testing.assert_close(stretches, expected)
    stretches[1].sum().backward()
    assert encoder.positions.grad.abs().sum() > 0, "the leak still pulls to x(0), which has them"


def test_jasmin_loss_equals_that_of_the_maps_and_has_gradients():
    network, images = made(DistillObjective(cls=0.0, patches=0.0, logits=1e-9, jasmin=1.0)), tiny_images()
    output = network(images)
    maps = network.student.states(images, save=SaveAt(attentions=True)).attentions
    expected = torch.stack([jasmin(attention, 2) for attention in maps]).mean()
    torch.testing.assert_close(output.parts["jasmin"], expected, rtol=1e-4, atol=1e-6)
    output.loss.backward()
    assert network.student.field.attention.q_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("part", ["attention_l1", "attention_kl"])
def test_attention_losses_have_gradients(part):
    network = made(DistillObjective(**{part: 1.0}))
    output = network(tiny_images())
    assert output.parts[part] > 0
    output.loss.backward()
    assert network.student.field.attention.k_proj.weight.grad.abs().sum() > 0


def test_optimiser_step_changes_only_the_field():
    network, images = made(), tiny_images()
    teacher = copy.deepcopy(network.teacher.state_dict())
    frozen = {name: p.clone() for name, p in network.named_parameters() if not p.requires_grad}
    own = {id(p) for p in network.parameters()}
    assert not own & {id(p) for p in network.teacher.parameters()}, "nothing is shared"
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    before = network.student.field.attention.q_proj.weight.clone()
    network(images).loss.backward()
    optimiser.step()
    assert not torch.equal(before, network.student.field.attention.q_proj.weight)
    assert all(torch.equal(value, network.teacher.state_dict()[name]) for name, value in teacher.items())
    assert all(torch.equal(frozen[name], p) for name, p in network.named_parameters() if name in frozen)


def test_cross_entropy_counts_from_its_fraction_of_training():
    network = made(DistillObjective(cross_entropy=1.0, cross_entropy_from=0.5))
    labels = torch.tensor([0, 1, 2])
    assert "cross_entropy" not in network(tiny_images(), labels).parts
    network.progress = 0.5
    assert network(tiny_images(), labels).parts["cross_entropy"] > 0
    with pytest.raises(ValueError, match="needs labels"):
        network(tiny_images())


def test_head_parameters_finds_the_head():
    network = made()
    shapes = {tuple(p.shape) for p in head_parameters(network.student.model)}
    assert shapes == {(5, 32), (5,)}
    with pytest.raises(ValueError, match="Linear has no part called classifier"):
        head_parameters(torch.nn.Linear(2, 2))


def test_pooled_loss_compares_the_head_inputs_at_the_end():
    """Norm and pooling of the original, over the variance from image to image; the path does not count."""
    goal = DistillObjective(cls=0.0, patches=0.0, pooled=2.0, logits=0.0)
    network, images = made(goal), tiny_images()
    solver_config = network.student.solver_config.stretched(1.5)
    encoder = network.student.model.odevit
    ours, theirs = (
        encoder.pooling(encoder.norm(state), network.student.teacher_layout())
        for state in (
            network.student.states(images, solver_config=solver_config).state,
            network.teacher.states(images)[-1],
        )
    )
    loss = network(images, solver_config=solver_config).loss
    torch.testing.assert_close(loss, 2.0 * (ours - theirs).square().mean() / theirs.var(dim=0).mean())
    loss.backward()
    assert all(weight.grad is None for weight in network.student.model.classifier.parameters())
    assert any(weight.grad.abs().sum() > 0 for weight in network.student.field.parameters() if weight.grad is not None)


def test_check_pooled_refuses_models_without_a_linear_head():
    network = made()
    network.student.model.classifier = torch.nn.Sequential(torch.nn.Linear(32, 7), torch.nn.Linear(7, 5, bias=False))
    check_pooled(network.student, {"": DistillObjective(pooled=1.0)})  # its last map is one
    network.student.model.classifier = torch.nn.Bilinear(32, 32, 5)
    check_pooled(network.student, {"rollout": DistillObjective()})
    with pytest.raises(
        ConfigError, match=r"phases.random_solver.objective.pooled=1: .* no linear head with 5 outputs .* set"
    ):
        check_pooled(network.student, {"random_solver": DistillObjective(pooled=1.0)})


@pytest.mark.parametrize("name", ["jacobian", "settling", "transport"])
def test_each_penalty_is_weighted_and_has_gradients(name):
    parts = []
    for weight in (1.0, 2.0):
        torch.manual_seed(0)
        network = made(DistillObjective(cls=0.0, patches=0.0, logits=0.0, **{name: weight}))
        torch.manual_seed(1)
        output = network(tiny_images())
        assert torch.equal(output.loss.detach(), output.parts[name]), "nothing else is asked"
        output.loss.backward()
        assert any(p.grad is not None and p.grad.any() for p in network.student.field.parameters())
        parts.append(output.parts[name])
    assert parts[0] > 0
    torch.testing.assert_close(parts[1], 2 * parts[0])


def test_objective_reports_all_problems_together():
    bad = DistillObjective(path="first", cls=-1.0, teacher_forcing=2.0, jasmin=1.0, jasmin_k=1, unfreeze_head=True)
    problems = bad.problems()
    assert len(problems) == 6
    assert any("objective.path='first'" in problem for problem in problems)
    nothing = DistillObjective(cls=0, patches=0, registers=0, logits=0)
    assert nothing.problems() == [
        "nothing is asked of the student: every weight is 0; set for example objective.cls=1.0"
    ]
    assert replace(nothing, attention_l1=1.0).problems() == []
    assert replace(nothing, cross_entropy=1.0).problems() == []
    (late,) = replace(nothing, cross_entropy=1.0, cross_entropy_from=0.5).problems()
    assert late == "objective.cross_entropy_from=0.5, but nothing else counts until then; set it to 0"


def test_loss_refuses_fewer_steps_than_layers():
    with pytest.raises(ValueError, match=r"3 checkpoints .* do not fit into 2 steps"):
        made()(tiny_images(), solver_config=SolverConfig("lie_trotter", 2, 3.0))
