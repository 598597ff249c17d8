"""RUN -> Subject, Teacher, image processor: what lies in a folder, ready for analysis."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from huggingface_hub import try_to_load_from_cache
from transformers import ViTImageProcessorPil
from transformers.image_utils import PILImageResampling

from odevit.analysis.subject import Subject
from odevit.bundled import bundled_models
from odevit.distill.pixels import statistics_of
from odevit.distill.student import ENCODER, OdeStudent
from odevit.distill.teacher import Teacher
from odevit.model import OdeViTForImageClassification, make_image_processor
from odevit.verbs import load_model


def load_subject(run: str | os.PathLike[str]) -> Subject:
    """The model of a folder, taken apart: a distilled student where there is an encoder.json, a classifier otherwise.

    Args:
        run: a run's folder, any folder that `save_pretrained` wrote, or the name of a bundled model.
    """
    folder = Path(run)
    if (folder / ENCODER).is_file():
        return Subject.of(OdeStudent.from_pretrained(folder))
    if folder.exists() and not (folder / "config.json").is_file():
        known = ", ".join(bundled_models()) or "none"
        raise ValueError(
            f"{os.fspath(run)} holds neither a config.json nor an {ENCODER}; expected the folder of a finished run, "
            f"one that save_pretrained wrote, or a bundled model: {known}"
        )
    return Subject.of(load_model(run).eval())


def load_teacher(run: str | os.PathLike[str]) -> Teacher | None:
    """The teacher of a distilled student: RUN/teacher, or the one that RUN/recipe.yaml names.

    None where there is no student, or where its teacher is not at hand; nothing is downloaded.
    """
    folder = Path(run)
    if not (folder / ENCODER).is_file():
        return None
    if (folder / "teacher/config.json").is_file():
        return Teacher(folder / "teacher")
    recipe = folder / "recipe.yaml"
    named = yaml.safe_load(recipe.read_text()).get("teacher") if recipe.is_file() else None
    return Teacher(named) if named and _at_hand(named) else None


def image_processor(subject: Subject) -> ViTImageProcessorPil:
    """(resize(image) / 255 - mean) / std with the size and the pixel statistics of the model, a student's as well."""
    model = subject.model
    if isinstance(model, OdeViTForImageClassification):
        return make_image_processor(model.config)
    assert isinstance(model, OdeStudent)  # a Subject is one or the other
    statistics = statistics_of(model.processor, model.model)
    if statistics is None:
        raise ValueError(
            "the student does not say with which pixel statistics it was trained; expected a preprocessor_config.json "
            "with image_mean and image_std beside its weights"
        )
    height, width = model.anatomy.size
    return ViTImageProcessorPil(
        size={"height": height, "width": width},
        resample=PILImageResampling.BICUBIC,
        image_mean=list(statistics.mean),
        image_std=list(statistics.std),
        do_convert_rgb=model.anatomy.channels == 3,
    )


def _at_hand(source: str) -> bool:
    """Whether a model lies in a folder or in the hub's cache."""
    if Path(source).is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except ValueError:  # no folder, and no name that the hub could know
        return False
