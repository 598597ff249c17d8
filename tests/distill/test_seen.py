"""A share of the patches is enough to learn from: both see the same ones, and nothing else changes."""

import pytest
import torch

from odevit.distill.alignment import Alignment
from odevit.distill.checks import refuse_glances
from odevit.distill.loss import Distillation, glance
from odevit.distill.objective import DistillObjective
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.surgery.surgery import get_ode_model
from odevit.tokens import PrefixLayout, TokenLayout, gather_tokens
from tests.tiny import tiny_images, tiny_model
from tests.zoo import images, make

PLACED = ("dinov3", "dinov3-gated", "odevit-options")
WITH_HEAD = ["vit-classifier", "deit-classifier", "dinov2-classifier", "dinov2-registers-classifier"]


def itself(name):
    """A distillation whose student is its teacher, block by block."""
    teacher = Teacher(make(name))
    student = get_ode_model(
        teacher.model, knots=3, blend="constant", steps=3, horizon=None, vit_spec=teacher.vit_spec, mlp_ratio=None
    )
    goal = DistillObjective(cls=0.5, patches=0.0, others=0.5, pooled=1.0, seen=0.5)
    return Distillation(student, teacher, Alignment("uniform", (1.0,) * 3), goal).train()


def test_a_glance_has_all_tokens_but_some_of_the_patches():
    for layout, first in ((PrefixLayout(True, (4, 4), 2), 3), (TokenLayout(True, (4, 4), 2), 1)):
        kept, seen = glance(layout, 0.5, images(200))
        assert kept.shape == (200, len(seen))
        assert seen.num_patches == 8
        patches = kept[:, seen.patches]
        assert patches.sort(dim=1).values.diff(dim=1).min() > 0, "no patch twice"
        assert patches.min() == first
        assert patches.max() == first + 15
        others = torch.cat([kept[:, : seen.patches.start], kept[:, seen.patches.stop :]], dim=1)
        assert torch.equal(others, others[:1].expand_as(others)), "CLS and registers are always there"
        counts = torch.bincount(patches.flatten() - first, minlength=16) / 200
        assert (counts - 0.5).abs().max() < 0.2, "every patch as often as any other"
        assert len({tuple(sorted(row.tolist())) for row in patches}) > 150, "other patches for every image"


@pytest.mark.parametrize("name", ["vit", "dinov2", "dinov2-registers", "clip", "siglip", "aimv2", "odevit-encoder"])
def test_a_teacher_that_sees_all_in_another_order_says_the_same(name):
    """Attention knows no order: positions were added before."""
    teacher = Teacher(make(name))
    pixels, layout = images(), teacher.layout()
    patches = torch.arange(layout.patches.start, layout.patches.stop).flip(0)
    order = torch.cat(
        [torch.arange(layout.patches.start), patches, torch.arange(layout.patches.stop, len(layout))]
    ).expand(len(pixels), -1)
    whole, turned = teacher(pixels), teacher(pixels, kept=order)
    for state, other in zip(whole.states, turned.states, strict=True):
        torch.testing.assert_close(gather_tokens(state, order), other, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(whole.pooled, turned.pooled, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(teacher(pixels).states, whole.states, atol=0, rtol=0)


@pytest.mark.parametrize("name", WITH_HEAD)
def test_a_student_that_is_its_teacher_has_no_loss_whatever_is_seen(name):
    network = itself(name)
    parts = network(images()).parts
    size = max(state.square().mean().item() for state in network.teacher.states(images()))
    assert parts["path"].item() < 1e-8 * size
    assert parts["pooled"].item() < 1e-8 * size
    assert abs(parts["logits"].item()) < 1e-5


def test_what_is_not_seen_has_no_influence():
    network, pixels = itself("vit-classifier"), images(1)
    kept = torch.tensor([[0, 1, 2, 3, 4]])  # CLS, and the upper row of patches
    changed = pixels.clone()
    changed[:, :, 4:] += 1.0
    ours, theirs = (network.teacher(x, kept=kept) for x in (pixels, changed))
    torch.testing.assert_close(ours.logits, theirs.logits)
    assert not torch.allclose(network.teacher(pixels).logits, network.teacher(changed).logits)


def test_other_patches_are_drawn_for_every_batch():
    original = tiny_model(depth="stacked", steps=3, bias=True, num_register_tokens=0)
    teacher = Teacher(original)
    student = get_ode_model(teacher.model, steps=6, horizon=3.0, mlp_ratio=2.0)
    alignment = Alignment("uniform", (1.0,) * 3)
    network = Distillation(student, teacher, alignment, DistillObjective(seen=0.5)).train()
    pixels = tiny_images()
    torch.manual_seed(0)
    first, second = network(pixels).loss, network(pixels).loss
    assert first != second
    torch.manual_seed(0)
    torch.testing.assert_close(network(pixels).loss, first)
    network.objective = DistillObjective(seen=1.0)
    torch.testing.assert_close(network(pixels).loss, network(pixels).loss)


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1])
def test_a_share_of_the_patches_is_asked_for(share):
    assert any("objective.seen" in problem for problem in DistillObjective(seen=share).problems())


@pytest.mark.parametrize("name", PLACED)
def test_a_teacher_that_is_told_places_of_patches_is_refused(name):
    teacher = Teacher(make(name))
    student = get_ode_model(teacher.model, steps=3, horizon=3.0, mlp_ratio=2.0)
    goals = {"walk": DistillObjective(seen=0.5), "any_way": DistillObjective()}
    with pytest.raises(
        ConfigError, match=r"phases\.walk\.objective\.seen=0\.5: .*are told where the patches .* set it to 1"
    ):
        refuse_glances(student, teacher, goals)
    refuse_glances(student, teacher, {"walk": DistillObjective()})
