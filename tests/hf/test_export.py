"""The fixed-step path is one graph: compiled, exported, and run by onnxruntime."""

import pytest
import torch

from odevit import export_onnx, export_program, load
from odevit.core.base import SOLVERS, FixedStepSolver
from tests.tiny import tiny_images, tiny_model

FIXED = [name for name in SOLVERS if issubclass(SOLVERS[name], FixedStepSolver)]
VARIANTS = [
    # A Runge-Kutta method, a splitting, an exponential one, each with another attention; the other solvers and
    # attentions are exported in test_registry.
    {"solver": "rk4", "steps": 1, "attention": "cosine"},
    {
        "solver": "strang",
        "steps": 1,
        "attention": "l2",
        "tokenizer": "conv",
        "pooling": "attention",
        "use_cls_token": False,
    },
    {"solver": "exponential_heun", "steps": 1, "attention": "hopfield", "time_conditioned": True},
    {"depth": "stacked"},
    {"knots": 2},
    {"knots": 2, "blend": "constant", "rank": 3},
    {"knots": 2, "blend": "constant", "vector_knots": 2, "vector_blend": "linear"},
    {"vector_knots": 2, "fade": 0.5, "leak": 0.0},
    {"steps": 1, "activation": "quick_gelu", "gated": True, "qk_norm": True, "rope_theta": 100.0},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: ",".join(f"{k}={x}" for k, x in v.items()))
def test_onnxruntime_computes_the_same(variant, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = tiny_model(**variant)
    export_onnx(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"], "one file, nothing beside it"
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for batch in (1, 4):
        images = tiny_images(batch)
        (logits,) = session.run(["logits"], {"pixel_values": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), model(images).logits, rtol=1e-4, atol=1e-4)


def test_the_exported_program_has_the_integration_it_was_given():
    model, images = tiny_model(), tiny_images()
    program = export_program(model, solver="rk4", steps=5, horizon=2.0).module()
    expected = model(images, solver="rk4", steps=5, horizon=2.0).logits
    torch.testing.assert_close(program(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", FIXED)
def test_the_fixed_step_path_compiles_to_one_graph(solver):
    model, images = tiny_model(solver=solver), tiny_images()
    compiled = torch.compile(lambda x: model(x).logits, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images).logits, rtol=1e-5, atol=1e-5)


def test_inductor_agrees_forwards_and_backwards():
    model, images, labels = tiny_model(steps=1), tiny_images(), torch.tensor([0, 1, 2])
    plain = torch.autograd.grad(model(images, labels).loss, list(model.parameters()))
    compiled = torch.compile(lambda x, y: model(x, y).loss, fullgraph=True)
    found = torch.autograd.grad(compiled(images, labels), list(model.parameters()))
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_export_refuses_a_model_in_training_mode():
    with pytest.raises(ValueError, match=r"call model.eval\(\)"):
        export_program(tiny_model().train())


def test_export_refuses_an_equilibrium_and_exports_it_as_an_ode(tmp_path):
    model = tiny_model(depth="equilibrium", leak=1.0)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no fixed graph.*odevit.load\(folder, depth='ode'\)"):
        export_program(model)
    images = tiny_images()
    exported = export_program(load(tmp_path, depth="ode")).module()(images)
    torch.testing.assert_close(exported, model(images, depth="ode").logits, rtol=1e-5, atol=1e-5)


def test_export_onnx_refuses_adaptive_solvers(tmp_path):
    with pytest.raises(ValueError, match=r"'dopri5' chooses its steps while it runs.*solver='rk4', steps=24"):
        export_onnx(tiny_model(), tmp_path / "model.onnx", solver="dopri5")
