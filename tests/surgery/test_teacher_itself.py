"""A student with a constant knot for every block is its teacher; with fewer knots it starts as blends of the blocks."""

import pytest
import torch
import transformers as hf

from odevit import OdeStudent, get_ode_model
from odevit.distill.teacher import Teacher
from odevit.errors import OdeVitWarning
from odevit.surgery.block_adapter import weights_of
from odevit.surgery.block_locator import find_blocks
from odevit.surgery.weight_init import blend_weights, knot_times
from odevit.time_varying.knot_schedule import KnotSchedule
from odevit.time_varying.knots import KnottedField
from tests.tiny import tiny_model
from tests.zoo import TINY, WIDE, ZOO, LikeTimm, answers, images, make, teacher_path

TWELVE = {"num_hidden_layers": 12}
DEEP = {
    "vit-12": lambda: hf.ViTModel(hf.ViTConfig(**{**WIDE, **TWELVE})),
    "dinov2-12": lambda: hf.Dinov2Model(hf.Dinov2Config(**{**TINY, **TWELVE})),
    "dinov3-12": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**{**WIDE, **TWELVE}, num_register_tokens=4)),
    "timm": lambda: LikeTimm(),
    "timm-qk-norm": lambda: LikeTimm(qk_norm=True),
}
Q_PROJ = "components.attention.body.q_proj.weight"


@torch.no_grad()
def teacher_of(name):
    """A teacher none of whose weights is 0 or 1 by default."""
    torch.manual_seed(0)
    model = DEEP[name]().eval() if name in DEEP else make(name)
    for key, value in model.named_parameters():
        if "scale" in key:
            value.uniform_(0.3, 1.5)
        elif value.ndim == 1:
            value.add_(0.1 * torch.randn_like(value))
    return model.requires_grad_(False)


def exact_student(model, **settings):
    count = len(find_blocks(model).blocks(model))
    return get_ode_model(model, knots=count, blend="constant", steps=count, horizon=None, **settings)


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def blocks_of(model):
    return [weights_of(block, False) for block in find_blocks(model).blocks(model)]


@pytest.mark.parametrize("name", [*ZOO, *DEEP])
def test_a_constant_knot_for_every_block_is_the_teacher(name):
    model, pixels = teacher_of(name), images()
    student = exact_student(model)
    assert student.config.init == "average"
    with torch.no_grad():
        for x, h in zip(teacher_path(student, pixels).states, Teacher(model).states(pixels), strict=True):
            assert_near(x, h)
        for key, value in answers(model(pixels)).items():
            assert_near(answers(student(pixels))[key], value)


@pytest.mark.parametrize("name", ["dinov2-classifier", "dinov3-gated", "odevit-options"])
def test_an_exact_student_is_saved_loaded_and_unloaded(name, tmp_path):
    model, pixels = teacher_of(name), images()
    student = exact_student(model)
    student.save_pretrained(tmp_path)
    again = OdeStudent.from_pretrained(tmp_path)
    for key, value in answers(student(pixels)).items():
        assert torch.equal(answers(again(pixels))[key], value)
    assert student.unload() is model
    assert "\n" not in again.summary(), "its teacher's blocks are not at hand"
    assert OdeStudent.from_pretrained(tmp_path, original=model).summary() == student.summary()


def test_a_teacher_in_half_precision_is_copied_exactly_and_silently():
    model = teacher_of("dinov2").bfloat16()
    pixels = images()
    student = exact_student(model)
    exact = exact_student(model.float())
    for own, other in zip(student.field.parameters(), exact.field.parameters(), strict=True):
        assert own.dtype == torch.float32
        assert torch.equal(own, other)
    assert_near(teacher_path(exact, pixels).state.detach(), Teacher(model.float()).states(pixels)[-1])


def test_attention_options_are_the_teachers():
    options = {"attention": "hopfield", "attention_options": {"updates": 2}}
    model, pixels = tiny_model(depth="stacked", **options).eval(), torch.randn(2, 3, 16, 16)
    student = exact_student(model)
    assert student.config.attention_options == options["attention_options"]
    with torch.no_grad():
        assert_near(student(pixels).logits, model(pixels).logits)
        with pytest.warns(OdeVitWarning, match="a block and its copy differ"):  # what was asked for goes first
            assert exact_student(model, attention_options={"updates": 1}).config.attention_options == {"updates": 1}


def test_residual_scale_keeps_a_layer_scale_as_a_factor():
    model, pixels = teacher_of("dinov2"), images()
    student = exact_student(model, residual_scale=1.0)
    assert_near(teacher_path(student, pixels).state.detach(), Teacher(model).states(pixels)[-1])


@pytest.mark.parametrize(
    ("knots", "blend", "expected"),
    [
        (1, "linear", [[1 / 4] * 4]),
        (2, "linear", [[1 / 2, 1 / 3, 1 / 6, 0], [0, 1 / 6, 1 / 3, 1 / 2]]),
        (3, "linear", [[3 / 4, 1 / 4, 0, 0], [0, 1 / 2, 1 / 2, 0], [0, 0, 1 / 4, 3 / 4]]),
        (2, "constant", [[1 / 2, 1 / 2, 0, 0], [0, 0, 1 / 2, 1 / 2]]),
        (3, "constant", [[1, 0, 0, 0], [0, 1 / 2, 1 / 2, 0], [0, 0, 0, 1]]),
        (4, "linear", torch.eye(4).tolist()),
        (4, "constant", torch.eye(4).tolist()),
    ],
)
def test_blend_weights_of_small_cases(knots, blend, expected):
    torch.testing.assert_close(blend_weights(KnotSchedule.of(knots, 7.0, blend), 4), torch.tensor(expected))


def test_blend_weights_of_a_knot_without_a_block_take_the_nearest():
    table = KnotSchedule.of(4, 1.0, "constant", (0.0, 0.26, 0.27, 0.5))
    assert blend_weights(table, 3).tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0.5, 0.5]], "that in which it lies"
    table = KnotSchedule.of(4, 1.0, "linear", (0.0, 0.4, 0.45, 1.0))
    assert blend_weights(table, 2).tolist() == [[1, 0], [1, 0], [1, 0], [0, 1]]


@pytest.mark.parametrize("blend", ["linear", "constant"])
def test_init_average_blends_the_blocks_of_each_knot(blend):
    model = teacher_of("vit")
    student = get_ode_model(model, knots=2, blend=blend, steps=3, horizon=None)
    first, second, third = (block[Q_PROJ] for block in blocks_of(model))
    found = [knot.attention.q_proj.weight for knot in student.field.knots]
    if blend == "linear":
        expected = [(first + second / 2) / 1.5, (second / 2 + third) / 1.5]
    else:
        expected = [first, (second + third) / 2]  # the middle of the second block is where the second piece begins
    for ours, by_hand in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, by_hand)


def test_low_rank_changes_start_as_the_best_approximation():
    model = teacher_of("dinov2")
    blocks = blocks_of(model)
    mean = {name: sum(block[name] for block in blocks) / 3 for name in blocks[0]}
    errors = []
    for rank in (2, 8, 32):
        student = get_ode_model(model, knots=3, rank=rank, blend="constant", steps=3, horizon=None)
        assert isinstance(student.field, KnottedField)
        torch.testing.assert_close(student.field.knots[0].attention.q_proj.weight, mean[Q_PROJ])
        now = student.field.at(1.0)  # where the second piece begins
        norm = "components.attention.norm.weight"
        torch.testing.assert_close(now.components["attention"].norm.weight, blocks[1][norm])
        missed = blocks[1][Q_PROJ] - mean[Q_PROJ]
        left = torch.linalg.svdvals(missed)[rank:].norm()  # Eckart and Young
        error = (now.attention.q_proj.weight - blocks[1][Q_PROJ]).norm()
        torch.testing.assert_close(error, left, atol=1e-5 * missed.norm().item(), rtol=1e-4)
        errors.append(error.item())
    assert errors[0] > errors[1] > errors[2]
    pixels = images()
    assert_near(teacher_path(student, pixels).state.detach(), Teacher(model).states(pixels)[-1])  # of full rank


def test_vectors_are_blended_at_their_own_knots():
    model = teacher_of("vit")
    student = get_ode_model(model, knots=2, vector_knots=3, steps=3, horizon=None)
    for number, block in enumerate(blocks_of(model)):
        now = student.field.at(3.0 * number / 2)
        torch.testing.assert_close(now.components["mlp"].norm.bias, block["components.mlp.norm.bias"])
    assert (student.field.at(1.5).attention.q_proj.weight - blocks_of(model)[1][Q_PROJ]).norm() > 1e-3


def test_init_auto_is_average_with_knots_and_spectral_without():
    assert get_ode_model(make("vit"), steps=3).config.init == "spectral"
    assert get_ode_model(make("vit"), knots=2, steps=3).config.init == "average"
    with pytest.warns(OdeVitWarning, match=r"without its teacher's weights: hidden_size=16, the teacher's is 32"):
        student = get_ode_model(make("vit"), knots=2, steps=3, hidden_size=16)
    assert student.config.init == "spectral"
    first, second = student.field.knots
    assert torch.equal(first.attention.q_proj.weight, second.attention.q_proj.weight)


def test_get_ode_model_warns_of_what_a_copy_lacks():
    strange = LikeTimm().eval()
    for block in strange.blocks:
        block.mlp.act = torch.nn.Tanh()
    with pytest.warns(OdeVitWarning, match=r"differ by 0% .* activation Tanh .* none of gelu, gelu_tanh"):
        get_ode_model(strange, init="average", steps=3)
    for block in strange.blocks:
        block.mlp.act = torch.nn.GLU()
    with pytest.warns(OdeVitWarning, match=r"activation GLU .* none of gelu, gelu_tanh"):
        get_ode_model(strange, init="average", steps=3)
    for block in strange.blocks:
        block.mlp.act = None
        block.mlp.extra = torch.nn.Linear(32, 32)
    with pytest.warns(OdeVitWarning, match=r"parts that a field has not: mlp.extra.weight"):
        get_ode_model(strange, knots=2, steps=3)
    with pytest.warns(OdeVitWarning, match=r"differ by \d+% of what the block does: its positions stand in attention"):
        get_ode_model(make("dinov3"), knots=2, steps=3, rope_theta=0.0)
    with pytest.warns(OdeVitWarning, match=r"differ by \d+% .* compute something that no field does"):
        get_ode_model(make("clip"), knots=2, steps=3, activation="relu")


def test_a_block_needs_no_norm_that_is_known_to_have_factors():
    block = LikeTimm().blocks[0]
    block.ffn_norm = block.norm2
    del block.norm2
    weights = weights_of(block, scaled=True)
    assert torch.equal(weights["components.mlp.residual_scale"], torch.ones(32))
    assert "components.mlp.norm.weight" not in weights, "which is then said to be missing"
    strange = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    assert weights_of(strange, scaled=True) == {}, "nothing of it is known"


def test_summary_lists_the_distance_of_every_knot():
    model = teacher_of("vit")
    student = get_ode_model(model, knots=2, blend="constant", steps=3, horizon=None)
    _, head, first, second = student.summary().splitlines()
    assert head.split()[0] == "knot"
    _, *others = (torch.cat([weight.flatten() for weight in block.values()]) for block in blocks_of(model))
    apart = (others[0] - others[1]).norm() / 2
    assert first.split() == ["1", "0.000", "1", "0.000"]
    assert second.split() == ["2", "0.500", "2-3", *(f"{(apart / block.norm()).item():.3f}" for block in others)]


def test_knot_times_divide_the_path_into_equal_lengths():
    assert knot_times([1.0] * 12, 4) == (0.0, 0.333333, 0.666667, 1.0)
    assert knot_times([1.0] * 12, 4, "constant") == (0.0, 0.25, 0.5, 0.75)
    assert knot_times([1.0, 1.0, 2.0, 4.0], 3) == (0.0, 0.75, 1.0)
    assert knot_times([3.0, 0.0, 0.0, 1.0], 3) == (0.0, round(1 / 6, 6), 1.0)
    assert knot_times([1.0, 1.0, 0.0, 0.0], 3) == (0.0, 0.25, 0.5), "what stands still needs no knot"
    with pytest.raises(ValueError, match="expected a layer that moves the tokens"):
        knot_times([0.0, 0.0], 2)
    times = knot_times([1.0, 1.0, 4.0], 2, "constant")
    student = get_ode_model(make("vit"), knots=2, blend="constant", knot_times=times, steps=3, horizon=None)
    assert tuple(student.config.knot_times) == times


def test_vector_blend_may_be_linear_where_matrices_are_constant():
    """So that a way needs no step for each of them; at their own knots, norms and biases are those of a layer."""
    model = teacher_of("vit-12")
    student = get_ode_model(model, knots=3, blend="constant", vector_knots=12, vector_blend="linear")
    field, blocks = student.field, blocks_of(model)
    name = "components.attention.norm.weight"
    for layer in range(12):
        here = dict(field.at(field.change_schedule.times[layer] * 12.0).named_buffers())[name]
        torch.testing.assert_close(here, blocks[layer][name], rtol=1e-5, atol=1e-5)
    student(images(), steps=8)
    with pytest.raises(ValueError, match=r"would skip 4 of the 12 constant pieces of weights \(vector_knots"):
        get_ode_model(model, knots=3, blend="constant", vector_knots=12)(images(), steps=8)
    again = student.config.to_dict()
    assert (again["blend"], again["vector_blend"]) == ("constant", "linear")


def test_more_knots_than_blocks_are_refused():
    with pytest.raises(ValueError, match=r"knots=4, but the teacher has 3 blocks; expected no more knots than blocks"):
        get_ode_model(make("vit"), knots=4, steps=4)
    with pytest.raises(ValueError, match=r"vector_knots=5, but the teacher has 3 blocks"):
        get_ode_model(make("vit"), knots=2, vector_knots=5, steps=5)
