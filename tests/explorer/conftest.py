"""A folder with runs/: a model trained from scratch, and a student beside its teacher."""

import pytest
import torch
from PIL import Image, ImageDraw

from odevit import get_ode_model
from tests.tiny import tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """runs/small (a tiny ODE-ViT with CLS), runs/student and runs/student/teacher (a tiny ViT)."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tiny_model(leak=1.0, steps=4, horizon=2.0).save_pretrained(folder / "runs/small")
    teacher = tiny_model(depth="stacked", steps=3, num_register_tokens=0)
    teacher.save_pretrained(folder / "runs/student/teacher")
    get_ode_model(teacher, steps=4, horizon=3.0).save_pretrained(folder / "runs/student")
    (folder / "runs/broken").mkdir()
    (folder / "runs/broken/config.json").write_text("no json")
    return folder


@pytest.fixture(scope="session")
def cat(tmp_path_factory):
    """An image that is none of the drawings."""
    picture = Image.new("RGB", (200, 150), "white")
    ImageDraw.Draw(picture).ellipse([50, 30, 150, 130], fill="orange")
    path = tmp_path_factory.mktemp("pictures") / "cat.png"
    picture.save(path)
    return path
