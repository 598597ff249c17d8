"""pixel_values -> logits as a fixed graph: torch.export and ONNX."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from odevit.model.modeling_odevit import OdeViTForImageClassification
from odevit.shapes import Logits, Pixels
from odevit.solver import FixedStepSolver, make_solver


class _Logits(nn.Module):
    """pixel_values -> logits, with the integration settled."""

    def __init__(
        self,
        model: OdeViTForImageClassification,
        solver: str | None,
        steps: int | None,
        horizon: float | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = {"solver": solver, "steps": steps, "horizon": horizon}

    def forward(self, pixel_values: Pixels) -> Logits:
        return self.model(pixel_values, **self.settings).logits


def export_program(
    model: OdeViTForImageClassification,
    *,
    solver: str | None = None,
    steps: int | None = None,
    horizon: float | None = None,
) -> ExportedProgram:
    """The model as a `torch.export` program that takes any batch size; solver, steps and horizon become part of it."""
    frozen, example, dynamic = _prepare(model, solver, steps, horizon)
    return torch.export.export(frozen, (example,), dynamic_shapes=dynamic)


def export_onnx(
    model: OdeViTForImageClassification,
    path: str | os.PathLike[str],
    *,
    solver: str | None = None,
    steps: int | None = None,
    horizon: float | None = None,
) -> None:
    """Write the model as one ONNX file: input `pixel_values`, output `logits`, any batch size."""
    try:
        import onnxscript  # noqa: F401 (torch's exporter needs it and says so less plainly)
    except ImportError as error:
        raise ImportError("ONNX export needs onnx and onnxscript; pip install 'odevit[onnx]'") from error
    frozen, example, dynamic = _prepare(model, solver, steps, horizon)
    torch.onnx.export(
        frozen,
        (example,),
        os.fspath(path),
        dynamo=True,
        external_data=False,
        input_names=["pixel_values"],
        output_names=["logits"],
        dynamic_shapes=dynamic,
        verbose=False,
    )


def _prepare(
    model: OdeViTForImageClassification, solver: str | None, steps: int | None, horizon: float | None
) -> tuple[nn.Module, torch.Tensor, dict[str, dict[int, Dim]]]:
    if model.training:
        raise ValueError("the model is in training mode, its dropout would be part of the graph; call model.eval()")
    name = solver or model.config.solver
    if model.config.depth == "ode" and not isinstance(make_solver(name), FixedStepSolver):
        raise ValueError(
            f"the solver {name!r} chooses its steps while it runs and has no fixed graph to export; "
            "pass a fixed-step one, for example solver='rk4', steps=24"
        )
    config = model.config
    example = torch.zeros(2, config.num_channels, config.image_size, config.image_size, device=model.device)
    return _Logits(model, solver, steps, horizon).eval(), example, {"pixel_values": {0: Dim("batch")}}
