"""A folder with runs/: an equation of its own, and a student beside its teacher."""

import pytest
import torch
from PIL import Image, ImageDraw

from odevit import get_ode_model
from tests.tiny import tiny_model


@pytest.fixture(scope="session")
def rooms(tmp_path_factory):
    """runs/small (a tiny equation with CLS), runs/student and runs/student/teacher (a tiny stack)."""
    folder = tmp_path_factory.mktemp("rooms")
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
    """A picture that is none of the drawings."""
    picture = Image.new("RGB", (200, 150), "white")
    ImageDraw.Draw(picture).ellipse([50, 30, 150, 130], fill="orange")
    path = tmp_path_factory.mktemp("pictures") / "cat.png"
    picture.save(path)
    return path
