"""pixel_values -> logits as a fixed graph: torch.export and ONNX."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.hf.checks import refuse_nan
from odevit.tokens import Logits, Pixels


class _LogitsOf(nn.Module):
    """pixel_values -> logits, with fixed solver, steps and horizon."""

    def __init__(self, model: nn.Module, solver_config: SolverConfig | None) -> None:
        super().__init__()
        self.model = model
        self.solver_config = solver_config

    def forward(self, pixel_values: Pixels) -> Logits:
        return self.model(pixel_values, solver_config=self.solver_config, return_dict=True).logits


def export_program(
    model: ImageModel, *, solver: str | None = None, steps: int | None = None, horizon: float | None = None
) -> ExportedProgram:
    """The model as a `torch.export` program that takes any batch size; solver, steps and horizon become part of it."""
    if model.training:
        raise ValueError("the model is in training mode, its dropout would be part of the graph; call model.eval()")
    solver_config = model.depth.resolve(solver, steps, horizon)
    problem = model.depth.export_problem(solver_config or model.solver_config)
    if problem is not None:
        raise ValueError(problem)
    refuse_nan(model, "the model")
    example = torch.zeros(2, model.config.num_channels, *model.image_size, device=next(model.parameters()).device)
    with torch.no_grad():
        output = model(example, solver_config=solver_config, on_failure="ignore", return_dict=True)
    output.trajectory.require("the model does not integrate a grey image")
    dynamic = {"pixel_values": {0: Dim("batch")}}
    return torch.export.export(_LogitsOf(model, solver_config).eval(), (example,), dynamic_shapes=dynamic)


def export_onnx(
    model: ImageModel,
    path: str | os.PathLike[str],
    *,
    solver: str | None = None,
    steps: int | None = None,
    horizon: float | None = None,
) -> None:
    """Write the model as one ONNX file: input `pixel_values`, output `logits`, any batch size."""
    try:
        import onnxscript  # noqa: F401 (torch's exporter needs it, with a less clear error)
    except ImportError as error:
        raise ImportError("ONNX export needs onnx and onnxscript; pip install 'odevit[onnx]'") from error
    torch.onnx.export(
        export_program(model, solver=solver, steps=steps, horizon=horizon),
        (),
        os.fspath(path),
        dynamo=True,
        external_data=False,
        input_names=["pixel_values"],
        output_names=["logits"],
        verbose=False,
    )
