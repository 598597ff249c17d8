"""What a folder holds is found, and what it does not hold is said."""

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from odevit.analysis.load import image_processor, load_subject, load_teacher
from odevit.distill import OdeEncoderConfig, get_ode_model
from tests.distill.zoo import images, make
from tests.model.tiny import tiny_images, tiny_model


@pytest.fixture
def student(tmp_path):
    """A student of a tiny ViT in tmp_path/run, and the teacher's folder, with its image processor, beside it."""
    teacher, folder = make("vit-classifier"), tmp_path / "vit"
    teacher.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.4] * 3, image_std=[0.3] * 3).save_pretrained(
        folder
    )
    get_ode_model(type(teacher).from_pretrained(folder).eval(), OdeEncoderConfig(steps=4)).save_pretrained(
        tmp_path / "run"
    )
    return tmp_path / "run"


def test_a_classifier_from_a_folder_answers_as_itself(tmp_path):
    model, pixels = tiny_model(), tiny_images()
    model.save_pretrained(tmp_path)
    subject = load_subject(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(subject.logits(subject.solve(subject.embed(pixels)).state), model(pixels).logits)
    assert load_teacher(tmp_path) is None


def test_the_bundled_model_by_its_name():
    assert load_subject("cifar10").labels[3] == "cat"
    assert load_teacher("cifar10") is None


def test_a_student_from_a_folder_answers_as_itself(student):
    subject, pixels = load_subject(student), images()
    with torch.no_grad():
        torch.testing.assert_close(
            subject.logits(subject.solve(subject.embed(pixels)).state), subject.model(pixels).logits
        )


def test_a_teacher_inside_the_run_goes_before_one_that_the_recipe_names(student):
    assert load_teacher(student) is None, "neither is there"
    (student / "recipe.yaml").write_text("teacher: ''\n")
    assert load_teacher(student) is None, "trained by the same command, and deleted since"
    (student / "recipe.yaml").write_text("teacher: no/such/place/anywhere\n")
    assert load_teacher(student) is None, "named, but not at hand"
    (student / "recipe.yaml").write_text(f"teacher: {student.parent / 'vit'}\n")
    assert load_teacher(student).num_layers == 3
    tiny_model(depth="stacked", steps=2).save_pretrained(student / "teacher")
    assert load_teacher(student).num_layers == 2


def test_a_student_sees_pixels_with_the_statistics_of_its_teacher(student):
    processor = image_processor(load_subject(student))
    pixels = processor(Image.new("RGB", (40, 20), (255, 0, 102)), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 16, 16)
    torch.testing.assert_close(pixels[0, :, 0, 0], torch.tensor([(1 - 0.4) / 0.3, -0.4 / 0.3, 0.0]))
    (student / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"expected a preprocessor_config\.json"):
        image_processor(load_subject(student))


def test_what_is_no_model_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"neither a config\.json nor an encoder\.json; expected .* cifar10"):
        load_subject(tmp_path)
    with pytest.raises(ValueError, match="neither a folder nor a bundled model"):
        load_subject("cifar11")
    tiny_model(depth="stacked").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no trajectory to analyse"):
        load_subject(tmp_path)
