"""Everything by everything: each solver, attention and norm runs forward, backward, save, load and export."""

import itertools

import pytest
import torch

from odevit import OdeViTForImageClassification, export_program
from odevit.field import ATTENTIONS, NORMS
from odevit.solver import SOLVERS, FixedStepSolver
from tests.model.tiny import tiny_images, tiny_model


@pytest.mark.parametrize(("solver", "attention", "norm"), list(itertools.product(SOLVERS, ATTENTIONS, NORMS)))
def test_every_combination(solver, attention, norm, tmp_path):
    model, images = tiny_model(solver=solver, attention=attention, norm=norm), tiny_images()
    output = model(images, torch.tensor([0, 1, 2]))
    assert output.trajectory.ok
    output.loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == [], "every parameter takes part"

    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(images).logits, output.logits, rtol=1e-6, atol=1e-6)

    if issubclass(SOLVERS[solver], FixedStepSolver):
        exported = export_program(again).module()
        torch.testing.assert_close(exported(images[:2]), output.logits[:2], rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(ValueError, match=r"no fixed graph to export; pass a fixed-step one"):
            export_program(again)
