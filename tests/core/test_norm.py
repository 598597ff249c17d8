"""Norms equal their formulas, and bound their output or not."""

import pytest
import torch

from odevit.core.layers import NORMS, CenterNorm


def test_center_norm_is_linear_with_spectral_norm_d_over_d_minus_one():
    norm = CenterNorm(8).double()
    matrix = norm(torch.eye(8, dtype=torch.float64))
    assert torch.linalg.matrix_norm(matrix, ord=2).item() == pytest.approx(8 / 7)
    torch.testing.assert_close(matrix.sum(-1), torch.zeros(8, dtype=torch.float64))


def test_rms_norm_equals_its_formula():
    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(
        NORMS["rms"](8).double()(x), x / x.square().mean(-1, keepdim=True).sqrt(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("name", "bounded"), [("layer", True), ("rms", True), ("center", False)])
def test_layer_and_rms_norm_are_bounded_and_center_norm_is_not(name, bounded):
    norm = NORMS[name](16)
    sizes = [norm(scale * torch.randn(64, 16)).norm(dim=-1).max().item() for scale in (1.0, 1e4)]
    assert (sizes[1] < 2 * sizes[0]) == bounded
