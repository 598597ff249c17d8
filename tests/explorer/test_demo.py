"""examples/demo.py and examples/student.py run, and their figures and tables are right."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from odevit import get_ode_model
from tests.tiny import tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return runpy.run_path(str(EXAMPLES / "demo.py"))


@torch.no_grad()
def test_demo_legends_do_not_cover_curves(demo):
    model = tiny_model(steps=3)
    pictures = {name: Image.effect_noise((16, 16), 50).convert("RGB") for name in ("one", "two")}
    pixels = model.image_processor(list(pictures.values()), return_tensors="pt")["pixel_values"]
    figure = demo["draw_demo"](model, pictures, pixels)
    figure.canvas.draw()
    legends = [(axes, axes.get_legend()) for axes in figure.axes if axes.get_legend()]
    assert len(legends) == 2
    for axes, legend in legends:
        frame = legend.get_window_extent()
        assert frame.y0 >= axes.get_window_extent().y1, "the legend stands above its curves"
        names = [text.get_text() for text in legend.get_texts()]
        assert len(set(names)) == len(names) == 3


def test_student_example_prints_the_teacher_and_seven_solver_settings(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=10,
    )  # fmt: skip
    vit = ViTForImageClassification(config).eval()
    vit.save_pretrained(tmp_path / "teacher")
    statistics = {"image_mean": [0.4] * 3, "image_std": [0.3] * 3}
    ViTImageProcessorPil(size={"height": 8, "width": 8}, **statistics).save_pretrained(tmp_path / "teacher")
    teacher = ViTForImageClassification.from_pretrained(tmp_path / "teacher").eval()
    get_ode_model(teacher, steps=4, leak=1.0).save_pretrained(tmp_path)
    (tmp_path / "recipe.yaml").write_text("teacher: ''\ndata: {source: digits}\n")
    monkeypatch.setattr(sys, "argv", ["student.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "student.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "359 test images" in out
    rows = {line[:24].strip(): line[24:].split() for line in out.splitlines() if "%" in line}
    own = next(cells for name, cells in rows.items() if name.endswith(", 4 steps"))
    assert own[2:] == ["100.00%", "4"], "the student agrees with itself"
    assert len(rows) == 8
    assert len(rows["teacher"]) == 2
