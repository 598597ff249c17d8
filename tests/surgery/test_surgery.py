"""A student is its original with an equation for blocks: the same outputs, the same frozen parts, and a way back."""

import copy
import json

import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetModel, SwinConfig, SwinModel, ViTImageProcessorPil

from odevit import OdeStudent, OdeStudentConfig, __version__, get_ode_model
from odevit.core.solution import SaveAt
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.tokens import PrefixLayout
from tests.tiny import tiny_model
from tests.zoo import PREFIX, SIZE, ZOO, LikeTimm, answers, images, make, teacher_path, through_a_folder

SMALL = {"steps": 3, "horizon": 3.0}


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def own_settings(config):
    return {name: getattr(config, name) for name in config.own_fields() if name != "base_config"}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("name", ZOO)
def test_a_student_is_trained_saved_loaded_and_unloaded(name, tmp_path):
    """Hub folder -> surgery -> a training step -> save -> load -> unload."""
    original = through_a_folder(make(name), tmp_path / "hub")
    before, flags = weights(original), [value.requires_grad for value in original.parameters()]
    pixels = images()
    expected = original(pixels)
    student = get_ode_model(original, **SMALL)

    output = student(pixels)
    assert type(output) is type(expected)
    assert {key: value.shape for key, value in answers(output).items()} == {
        key: value.shape for key, value in answers(expected).items()
    }
    shared = {value.data_ptr() for value in original.parameters()} & {
        value.data_ptr() for value in student.parameters()
    }
    assert not shared

    trainable = {key for key, value in student.named_parameters() if value.requires_grad}
    assert trainable == {
        f"{path}.{key}" for path, encoder in [("encoder", student.encoder)] for key, _ in encoder.named_parameters()
    }
    frozen = {key: value.clone() for key, value in student.state_dict().items() if key not in trainable}
    teacher = Teacher(original)
    states = teacher.states(pixels)
    student.train()
    optimiser = torch.optim.SGD([value for value in student.parameters() if value.requires_grad], lr=0.1)
    trajectory = teacher_path(student, pixels)
    loss = sum((x - h).square().mean() for x, h in zip(trajectory.states, states, strict=True))
    loss.backward()
    assert {key for key, value in student.named_parameters() if value.grad is not None} == trainable
    field_before = weights(student.field)
    optimiser.step()
    student.eval()
    assert_equal(frozen, {key: value for key, value in student.state_dict().items() if key not in trainable})
    assert any(not torch.equal(field_before[key], value) for key, value in student.field.state_dict().items())

    student.save_pretrained(tmp_path / "student")
    for again in (
        OdeStudent.from_pretrained(tmp_path / "student"),
        OdeStudent.from_pretrained(tmp_path / "student", original=original),
    ):
        assert own_settings(again.config) == own_settings(student.config)
        assert {key for key, value in again.named_parameters() if value.requires_grad} == trainable
        for key, value in answers(student(pixels)).items():
            assert torch.equal(value, answers(again(pixels))[key]), key

    assert student.unload() is original
    assert_equal(before, weights(original))
    assert [value.requires_grad for value in original.parameters()] == flags
    for key, value in answers(original(pixels)).items():
        assert torch.equal(value, answers(expected)[key])


@pytest.mark.parametrize("name", ZOO)
def test_teacher_readout_of_the_teachers_last_state_is_its_output(name):
    # torch's own attention, in SigLIP's head, rounds otherwise when its weights are to be trained.
    original, pixels = make(name).requires_grad_(False), images()
    teacher, student = Teacher(original), get_ode_model(original, **SMALL)
    states = teacher.states(pixels)
    with torch.no_grad():
        read, expected = answers(student.teacher_readout(states[-1])), answers(original(pixels))
    assert_equal(read, expected)
    assert torch.equal(student.teacher_embed(pixels), states[0])
    state = states[-1].clone().requires_grad_()
    next(iter(answers(student.teacher_readout(state)).values())).square().sum().backward()
    assert state.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ZOO)
def test_teacher_layout_names_cls_patches_and_registers(name):
    original, pixels = make(name), images()
    student = get_ode_model(original, **SMALL)
    layout = student.teacher_layout(*pixels.shape[-2:])
    assert len(layout) == student.teacher_embed(pixels).shape[1]
    assert layout.grid == (4, 4)
    if name.startswith("odevit"):
        assert (layout.patches, layout.registers) == (slice(1, 17), slice(17, 19))
        return
    prefix = PREFIX.get(name.removesuffix("-classifier"), 1)
    assert isinstance(layout, PrefixLayout)
    assert layout.patches == slice(prefix, prefix + 16)
    assert layout.cls == slice(0, min(1, prefix))
    assert layout.registers == slice(layout.cls.stop, prefix)
    # The patches are those tokens that change with the image.
    moved = (student.teacher_embed(pixels) - student.teacher_embed(pixels + 1.0)).abs().sum(dim=(0, 2)) > 0
    if name.startswith("clip"):  # its norm stands before the blocks, token by token
        assert moved[layout.patches].all()
    assert moved.nonzero().flatten().tolist() == list(range(prefix, prefix + 16))


def test_a_student_takes_a_step_of_length_one_for_each_block_unless_told_otherwise():
    vit = make("vit")
    blocks = vit.config.num_hidden_layers
    assert get_ode_model(vit).solver_config == SolverConfig("lie_trotter", blocks, float(blocks))
    assert get_ode_model(vit, steps=8).solver_config == SolverConfig("lie_trotter", 8, float(blocks))


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_get_ode_model_keeps_the_attention_implementation(name):
    vit = make(name)
    student = get_ode_model(vit, knots=2)
    assert vit.config._attn_implementation == "sdpa"
    assert student.model.config._attn_implementation == "sdpa", "transformers warns of a model without one"


def test_a_larger_image_gets_rotary_or_interpolated_positions():
    student = get_ode_model(make("dinov3"), **SMALL)
    pixels = images(size=24)
    assert student.teacher_layout(*pixels.shape[-2:]) == PrefixLayout(True, (6, 6), 2)
    assert teacher_path(student, pixels).state.shape == (2, 39, 32)  # positions of a larger grid, rotary ones
    learned = get_ode_model(make("dinov3"), rope_theta=0.0, **SMALL)
    assert teacher_path(learned, pixels).state.shape == (2, 39, 32)  # and stretched ones
    with pytest.raises(ValueError, match=r"24 patches, .* grid of 4x4"):
        teacher_path(student, torch.randn(1, 3, 16, 24))


def test_positions_are_learned_only_where_the_fields_attention_has_none():
    assert get_ode_model(make("dinov3"), **SMALL).encoder.positions is None, "its attention has them"
    assert get_ode_model(make("dinov3"), attention="l2", **SMALL).encoder.positions.shape == (1, 16, 32)
    assert get_ode_model(make("vit"), **SMALL).encoder.positions is None
    assert get_ode_model(make("siglip"), positions=True, **SMALL).encoder.positions.shape == (1, 16, 32)
    student = get_ode_model(make("dinov3"), rope_theta=0.0, **SMALL)
    x0 = student.teacher_embed(images())
    added = student.encoder.encode_tokens(x0) - x0
    assert torch.equal(added[:, :3], torch.zeros(2, 3, 32))
    torch.testing.assert_close(added[0, 3:], student.encoder.positions[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("width", [16, 48])
@pytest.mark.parametrize("name", ["vit-classifier", "odevit", "dinov3"])
def test_a_student_of_another_width_is_trained_and_saved(name, width, tmp_path):
    original, pixels = make(name), images()
    student = get_ode_model(original, hidden_size=width, **SMALL)
    assert student.field.attention.dim == width
    solution = teacher_path(student, pixels)
    assert solution.state.shape == (2, len(student.teacher_layout()), 32)
    assert len(solution.states) == 4
    answer = next(iter(answers(student(pixels)).values()))
    assert answer.shape == next(iter(answers(original(pixels)).values())).shape
    solution.state.square().mean().backward()
    assert student.encoder.in_proj.weight.grad is not None
    assert student.encoder.out_proj.weight.grad is not None
    if width > 32:  # nothing is lost on the way in and out
        encoder = student.encoder
        torch.testing.assert_close(
            encoder.decode_tokens(encoder.in_proj(solution.state)), solution.state, atol=1e-4, rtol=0
        )
    student.save_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path)
    assert torch.equal(teacher_path(again, pixels).state, teacher_path(student, pixels).state)


@pytest.mark.parametrize("tuples", [False, True])
def test_a_model_of_no_known_library_is_found_by_its_structure(tuples, tmp_path):
    original, pixels = LikeTimm(tuples=tuples).eval(), images()
    student = get_ode_model(original, **SMALL)
    assert student.vit_spec.as_tuple is tuples
    assert student(pixels).shape == (2, 5)
    assert torch.equal(student.teacher_readout(Teacher(original).states(pixels)[-1]), original(pixels))
    student.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pass OdeStudent.from_pretrained"):
        OdeStudent.from_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path, original=original)
    assert torch.equal(again(pixels), student(pixels))
    assert again.unload() is original
    with pytest.raises(ValueError, match=r"hidden_states were asked for, .* type Tensor has no place"):
        student(pixels, output_hidden_states=True)


def test_a_timm_model_becomes_a_student(tmp_path):
    timm = pytest.importorskip("timm")
    original = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5).eval()
    pixels = images(size=32)
    student = get_ode_model(original, **SMALL)
    teacher = Teacher(original)
    assert torch.equal(student.teacher_readout(teacher.states(pixels)[-1]), original(pixels))
    averaged = get_ode_model(original, init="average", **SMALL)
    mean = torch.stack([block.attn.qkv.weight[:192] for block in original.blocks]).mean(0)
    torch.testing.assert_close(averaged.field.attention.q_proj.weight, mean)
    student.save_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path)
    assert torch.equal(again(pixels), student(pixels))


def test_forward_takes_solver_steps_and_horizon():
    student, pixels = get_ode_model(make("vit-classifier"), **SMALL), images()
    fine = teacher_path(student, pixels, steps=7, horizon=2.0, solver="heun")
    assert (fine.time, fine.stats.steps, fine.stats.nfe, len(fine.states)) == (2.0, 7, 14, 8)
    output = student(pixels, steps=7, horizon=2.0, solver="heun", output_hidden_states=True, output_attentions=True)
    # Maps that are asked for are written out, which rounds otherwise than fused attention.
    torch.testing.assert_close(output.logits, student.teacher_readout(fine.state).logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.hidden_states, fine.states, atol=1e-5, rtol=0)
    assert [each.shape for each in output.attentions] == [(2, 4, 17, 17)] * 14
    assert student(pixels).hidden_states is None
    labels = torch.tensor([0, 1])
    expected = nn.functional.cross_entropy(student(pixels).logits, labels)
    torch.testing.assert_close(student(pixels, labels=labels).loss, expected)
    assert teacher_path(student, pixels, save=SaveAt((3,), detach=True)).states[0].grad_fn is None
    assert len(teacher_path(student, pixels, save=None).states) == 0


@pytest.mark.parametrize("name", ["vit-classifier", "dinov3", "odevit-options"])
def test_a_student_compiles_as_one_graph(name):
    student, pixels = get_ode_model(make(name), **SMALL), images()
    compiled = torch.compile(student, fullgraph=True, backend="eager")
    assert_equal(answers(compiled(pixels)), answers(student(pixels)))


def test_a_student_of_our_own_model_takes_steps():
    student, pixels = get_ode_model(make("odevit"), **SMALL), images()
    assert student(pixels).trajectory.stats.steps == 3
    assert student(pixels, steps=5).trajectory.stats.steps == 5


def test_a_failed_call_leaves_no_hook_and_no_module():
    student = get_ode_model(make("vit"), **SMALL)
    parts = [id(module) for module in student.modules()]
    with pytest.raises(ValueError, match="image size"):
        student.teacher_embed(images(size=20))
    with pytest.raises(ValueError, match=r"the state has the shape \(2, 17, 31\); expected \[batch, token, 32\]"):
        student.teacher_readout(torch.zeros(2, 17, 31))
    assert parts == [id(module) for module in student.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in student.modules())


def test_frozen_parts_stay_in_evaluation():
    student = get_ode_model(make("dinov3"), **SMALL).train()
    assert student.training
    assert student.field.training
    inside = set(student.encoder.modules()) | {student}
    assert not any(module.training for module in student.modules() if module not in inside)


def test_a_model_in_training_mode_stays_in_training_mode():
    original = make("vit").train()
    student = get_ode_model(original, **SMALL)
    assert original.training
    assert student.training
    assert all(module.training for module in original.modules())


def test_checkpointing_gives_the_same_gradients():
    student, pixels = get_ode_model(make("vit"), **SMALL).train(), images()
    found = []
    for switch in (student.gradient_checkpointing_disable, student.gradient_checkpointing_enable):
        switch()
        student.zero_grad()
        teacher_path(student, pixels).state.square().mean().backward()
        found.append(student.field.attention.q_proj.weight.grad.clone())
    torch.testing.assert_close(*found)


def test_half_precision_of_the_original_is_kept(tmp_path):
    original = make("vit-classifier").bfloat16()
    student = get_ode_model(original, **SMALL)
    assert student.field.attention.q_proj.weight.dtype == torch.float32
    output = student(images()).logits
    assert output.dtype == torch.bfloat16
    student.save_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path)
    assert torch.equal(again(images()).logits, output)


def test_deepcopy_of_a_student_shares_only_the_original():
    student = get_ode_model(make("vit"), **SMALL)
    twin = copy.deepcopy(student)
    assert twin.unload() is student.unload()
    assert twin.field is not student.field
    assert len(list(twin.parameters())) == len(list(student.parameters()))


def test_summary_counts_trained_all_and_original_parameters(capsys):
    original = make("vit")
    student = get_ode_model(original, **SMALL)
    student.print_summary()
    total = sum(value.numel() for value in student.parameters())
    field = sum(value.numel() for value in student.field.parameters())
    whole = sum(value.numel() for value in original.parameters())
    line = capsys.readouterr().out.strip()
    assert line == student.summary()
    assert "\n" not in line
    for number in (field, total, whole):
        assert f"{number:,}" in line


def test_save_load_save_of_a_student_gives_the_same_bytes(tmp_path):
    model = make("vit-classifier")
    model.save_pretrained(tmp_path / "hub")
    ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(tmp_path / "hub")
    original = type(model).from_pretrained(tmp_path / "hub")
    student = get_ode_model(original, **SMALL)
    student.save_pretrained(tmp_path / "a")
    files = {path.relative_to(tmp_path / "a").as_posix() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert files == {"config.json", "model.safetensors", "odevit_classes.py", "preprocessor_config.json"}
    assert json.loads((tmp_path / "a/config.json").read_text())["odevit_version"] == __version__
    assert ViTImageProcessorPil.from_pretrained(tmp_path / "a").size["height"] == SIZE
    again = OdeStudent.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    for name in sorted(files):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert again.config.original_parameters == student.config.original_parameters
    with pytest.raises(ValueError, match="holds no original blocks; pass OdeStudent"):
        again.unload()


def test_from_pretrained_refuses_an_empty_folder_and_another_original(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json and no model.safetensors"):
        OdeStudent.from_pretrained(tmp_path)
    get_ode_model(make("vit-classifier"), **SMALL).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="do not fit DeiTModel"):
        OdeStudent.from_pretrained(tmp_path, original=make("deit"))


def test_get_ode_model_of_a_student_says_to_unload():
    student = get_ode_model(make("vit"), **SMALL)
    for given in (student, student.model):
        with pytest.raises(ValueError, match=r"operated on already.*\.unload\(\)"):
            get_ode_model(given)


def test_get_ode_model_refuses_a_model_with_depth_ode():
    with pytest.raises(ValueError, match=r"depth='ode': it is an equation already.*expected depth='stacked'"):
        get_ode_model(tiny_model())


def test_models_without_equal_blocks_are_refused_with_a_list_of_candidates():
    resnet = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))
    with pytest.raises(ValueError, match=r"ResNetModel has .*Lists of modules in it: .*\(1 x ResNetBasicLayer\)"):
        get_ode_model(resnet)
    swin = SwinModel(
        SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2)
    )
    with pytest.raises(ValueError, match=r"SwinModel has 2 lists that could be its blocks"):
        get_ode_model(swin)
    with pytest.raises(ValueError, match=r"Linear has no list of equal blocks.*: none"):
        get_ode_model(nn.Linear(2, 2))


def test_attention_masks_are_refused():
    student = get_ode_model(make("vit"), **SMALL)
    with pytest.raises(ValueError, match="attention_mask was given, but a field looks at every token"):
        student(images(), attention_mask=torch.ones(2, 17))


def test_all_problems_of_a_configuration_are_listed_at_once():
    with pytest.raises(ConfigError) as caught:
        OdeStudentConfig(solver="hein", steps=0, horizon=-1.0, init="zeros", positions="yes", mlp_ratio=0)
    assert len(caught.value.problems) == 6
    assert "Did you mean 'heun'?" in str(caught.value)
    with pytest.raises(ConfigError, match=r"unknown key 'step'.*Did you mean 'steps'\?"):
        get_ode_model(make("vit"), step=3)
    with pytest.raises(ConfigError, match="num_attention_heads=5 does not divide hidden_size=32"):
        get_ode_model(make("vit"), num_attention_heads=5)


def test_a_configuration_is_saved_with_the_version(tmp_path):
    config = OdeStudentConfig(leak=1.0, horizon=None)
    config.save_pretrained(tmp_path)
    assert OdeStudentConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    student = get_ode_model(make("vit"), config, steps=2)
    assert (student.config.horizon, student.config.leak, student.config.steps) == (3.0, 1.0, 2)
    assert (student.config.hidden_size, student.config.num_attention_heads) == (32, 4)


RESTING = {"steps": 12, "horizon": 9.0, "leak": 1.0, "norm": "layer"}


@pytest.mark.parametrize(("name", "width"), [("vit-classifier", 32), ("vit-classifier", 16), ("odevit", 32)])
def test_stop_ends_each_sample_with_the_state_of_its_own_step(name, width):
    student = get_ode_model(make(name), hidden_size=width, num_attention_heads=4, **RESTING).eval()
    pixels = images()
    with torch.no_grad():
        path = teacher_path(student, pixels)
        answer = student(pixels, stop="kl:0.001")
        steps = (answer.trajectory.stop_times / 0.75).round().long()
        assert steps.min() < 12
        stopped = torch.stack([path.states[n][i] for i, n in enumerate(steps.tolist())])
        torch.testing.assert_close(answer.logits, student.teacher_readout(stopped).logits, rtol=1e-4, atol=1e-5)
        output = student(pixels, stop="kl:0.001", return_dict=True)
        logits, solution = output.logits, output.trajectory
        torch.testing.assert_close(logits, answer.logits)
        assert torch.equal(solution.stop_times, answer.trajectory.stop_times)


@pytest.mark.parametrize("name", ["vit-classifier", "odevit"])
def test_depth_equilibrium_gives_the_logits_of_a_long_horizon(name):
    # A leak that is strong against any random field: there is one rest point, whatever the weights are.
    student = get_ode_model(make(name), **{**RESTING, "leak": 4.0, "steps": 24}).eval()
    pixels = images()
    with torch.no_grad():
        far = student(pixels, steps=400, horizon=150.0).logits
        torch.testing.assert_close(student(pixels, depth="equilibrium").logits, far, rtol=2e-2, atol=5e-3)


def test_a_student_without_a_head_refuses_stop_kl():
    student = get_ode_model(make("dino"), **RESTING).eval()
    with pytest.raises(ValueError, match="no head to ask; use stop='velocity'"):
        student(images(), stop="kl")
    assert student(images(), stop="velocity").last_hidden_state.shape[0] == len(images())


def test_names_of_release_0_2_warn_and_give_what_they_gave():
    student, pixels = get_ode_model(make("vit-classifier"), hidden_size=16, registers=2, **SMALL).eval(), images()
    path = teacher_path(student, pixels)
    with pytest.warns(DeprecationWarning, match=r"OdeStudent.states is now follow"):
        old = student.states(pixels, save=[0, 3])
    assert_equal({"0": path.states[0], "3": path.state}, {"0": old.states[0], "3": old.state})
    with pytest.warns(DeprecationWarning, match=r"OdeStudent.tokens is now teacher_embed"):
        assert torch.equal(student.tokens(pixels), student.teacher_embed(pixels))
    with pytest.warns(DeprecationWarning, match="teacher_readout"):
        assert torch.equal(student.output(path.state).logits, student(pixels).logits)
    with pytest.warns(DeprecationWarning, match="teacher_layout"):
        assert student.outer_layout() == student.teacher_layout()
    with pytest.warns(DeprecationWarning, match="solver_config"):
        assert student(pixels, way=SolverConfig("heun", 2, 3.0)).trajectory.stats.nfe == 4
    with pytest.warns(DeprecationWarning, match="vit_spec"):
        assert get_ode_model(make("vit-classifier"), anatomy=student.vit_spec).vit_spec == student.vit_spec
    with pytest.raises(AttributeError, match="no attribute 'tokenz'"):
        student.tokenz  # noqa: B018


def test_a_trajectory_is_in_the_tokens_of_the_field_and_hidden_states_in_those_of_the_teacher():
    student, pixels = get_ode_model(make("vit-classifier"), hidden_size=16, registers=2, **SMALL).eval(), images()
    output = student(pixels, output_hidden_states=True)
    assert output.trajectory.state.shape == (2, 19, 16)
    assert torch.equal(output.trajectory.states[0], student.embed(pixels))
    assert torch.equal(student.readout(output.trajectory.state), output.logits)
    assert [state.shape for state in output.hidden_states] == [(2, 17, 32)] * 4
    assert torch.equal(output.hidden_states[-1], student.to_teacher_space(output.trajectory.state))
