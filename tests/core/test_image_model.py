"""The interface of image models: a model from scratch, a stack and a distilled student."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification, pipeline

from odevit import OdeStudent, SolverConfig, get_ode_model, load
from odevit.core.image_model import ImageModel
from tests.tiny import tiny_images, tiny_model
from tests.zoo import images, make

PIXELS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
STUDENT = {"steps": 3, "horizon": 3.0}


def student(name="vit-classifier", **settings):
    model = get_ode_model(make(name), **{**STUDENT, **settings}).eval()
    model.config.image_mean, model.config.image_std = PIXELS.values()
    return model


MODELS = {
    "ode": lambda: tiny_model(**PIXELS),
    "stacked": lambda: tiny_model(depth="stacked", **PIXELS),
    "equilibrium": lambda: tiny_model(depth="equilibrium", leak=1.0, **PIXELS),
    "student": student,
    "narrow student": lambda: student(hidden_size=16, registers=2),
    "student of a stack": lambda: student("odevit"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_every_image_model_has_the_same_interface(name, tmp_path):
    model = MODELS[name]()
    assert isinstance(model, ImageModel)
    pixels = images() if "student" in name else tiny_images()
    x0, layout = model.embed(pixels), model.layout()
    assert x0.shape[1] == len(layout)
    output = model(pixels)
    logits, solution = output.logits, output.trajectory
    torch.testing.assert_close(model.readout(solution.state), logits)
    torch.testing.assert_close(model.follow(x0).state, solution.state)
    weights, query = model.readout_weights(solution.state)
    torch.testing.assert_close(weights.sum(1), torch.ones(len(pixels)))
    assert isinstance(query, str)
    assert model.labels == {number: f"LABEL_{number}" for number in range(5)}
    assert model.image_size == (16, 16)
    assert model.parameter_count == sum(parameter.numel() for parameter in model.parameters())
    assert list(model.image_processor.image_std) == PIXELS["image_std"]
    if model.depth.has_trajectory:
        solver_config = SolverConfig("heun", 5, 2.0)
        output = model(pixels, solver_config=solver_config)
        other, solution = output.logits, output.trajectory
        assert solution.solver_config == solver_config
        assert solution.stats.nfe == 10
        torch.testing.assert_close(other, model(pixels, solver="heun", steps=5, horizon=2.0).logits)
        assert model.to_teacher_space(x0).shape[2] == 32, "the width of a teacher, or its own"
    else:
        with pytest.raises(ValueError, match=r"no trajectory.*depth='ode'"):
            model.field  # noqa: B018 (asking is the test)

    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again) is type(model)
    assert not again.training
    torch.testing.assert_close(again(pixels, return_dict=True).logits, logits, rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", ["ode", "student", "student of a stack"])
def test_eight_threads_with_different_solvers_give_the_logits_of_one_thread(name):
    """A call changes nothing in a model, so that threads can share it."""
    model = MODELS[name]()
    pixels = images() if "student" in name else tiny_images()
    ways = [{"steps": steps, "solver": solver} for steps in range(1, 11) for solver in ("euler", "heun")]

    def calls(solver_config):
        return (
            model(pixels, **solver_config).logits,
            model.readout(model.embed(pixels)),
            model(pixels, stop="velocity:1e-3", **solver_config).logits,
        )

    alone = [calls(solver_config) for solver_config in ways]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(calls, ways * 3))
    for index, answers in enumerate(together):
        for answer, expected in zip(answers, alone[index % len(ways)], strict=True):
            torch.testing.assert_close(answer, expected, rtol=0, atol=0)


@torch.no_grad()
def test_student_loads_with_auto_class_and_runs_in_pipeline(tmp_path):
    model = student()
    model.config.id2label = {number: f"class {number}" for number in range(5)}
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(again, OdeStudent)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    guesses = pipeline("image-classification", str(tmp_path))(Image.fromarray(pixels), top_k=5)
    expected = model(model.image_processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"])
    probabilities = expected.logits.softmax(-1)[0]
    assert {guess["label"] for guess in guesses} == set(model.labels.values())
    for guess in guesses:
        assert guess["score"] == pytest.approx(probabilities[int(guess["label"][-1])].item(), abs=1e-5)


def test_gradient_checkpointing_enable_sets_the_depth_of_a_student():
    model = student().train()
    model.gradient_checkpointing_enable()
    assert model.depth.gradient_checkpointing
    model.gradient_checkpointing_disable()
    assert not model.depth.gradient_checkpointing
