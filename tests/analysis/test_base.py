"""frozen restores a model and the random state."""

import pytest
import torch

from odevit.analysis.base import frozen
from odevit.core.field import VectorField


def mixed_field():
    field = VectorField(8, 2, dropout=0.5)
    field.components["mlp"].eval()
    field.attention.q_proj.weight.requires_grad_(False)
    return field


def condition(field):
    return [m.training for m in field.modules()], [p.requires_grad for p in field.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("fails", [False, True])
def test_frozen_restores_modes_gradients_and_generators(fails):
    field = mixed_field()
    modes, flags, state = condition(field)
    assert True in modes
    assert False in modes
    try:
        with frozen(field):
            assert not any(module.training for module in field.modules())
            assert not any(parameter.requires_grad for parameter in field.parameters())
            torch.rand(3)
            if fails:
                raise RuntimeError("in the middle")
    except RuntimeError:
        assert fails
    assert condition(field)[:2] == (modes, flags)
    assert torch.equal(condition(field)[2], state)
