"""Half-finished runs of version 0.2 continue to the end; tests/legacy/*/ was written by 0.2 and killed at update 8."""

import json
import shutil
from pathlib import Path

import pytest

from odevit.distill.distill_task import distill_recipe
from odevit.distill.distillation import compose_distillation
from odevit.train.classifier import train_recipe
from odevit.train.compose import compose_recipe

HERE = Path(__file__).parent
FINISHED = json.loads((HERE / "finished.json").read_text())
"""What 0.2 itself logged when it continued the same two runs."""
COMMON = [
    *("model.hidden_size=16", "model.num_attention_heads=2", "data.share=0.1", "train.batch_size=32"),
    *("train.evaluate_every=2", "train.log_every=2", "device=cpu"),
]
TRAINING = [*COMMON, "model.tokenizer_channels=[8]", "train.epochs=4", "train.steps=[4,6]", "train.coarse_first=0.1"]
DISTILLATION = [
    *COMMON,
    *("model.steps=2", "phases=default", "train.steps=[]", "train.horizons=[]", "student.steps=null"),
    *("teacher_train.epochs=1", "teacher_train.batch_size=32", "train.updates=16", "train.epochs=1"),
    *("alignment.kind=uniform", "alignment.images=32", "objective.meeting=exact", "compare=false"),
]


@pytest.fixture
def run(request, tmp_path):
    """A copy of a killed run."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / request.param))


def logged(run, key):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def check_continued(run, expected):
    """The log holds the lines of 0.2 and, after them, what 0.2 would have logged."""
    record = json.loads((run / "record.json").read_text())
    assert logged(run, "step")[-1] == expected["steps"]
    assert logged(run, "loss") == pytest.approx(expected["losses"], rel=1e-4)
    assert logged(run, "eval_accuracy") == pytest.approx(expected["scores"], abs=0.01)  # 143 held-out images
    assert record["top1"] == pytest.approx(expected["top1"], abs=0.01)
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize("run", ["training"], indirect=True)
def test_a_training_of_0_2_resumes_to_the_end(run):
    train_recipe(compose_recipe([f"out={run}", "resume=true", *TRAINING]))
    check_continued(run, FINISHED["training"])


@pytest.mark.parametrize("run", ["distillation"], indirect=True)
def test_a_distillation_of_0_2_resumes_to_the_end(run):
    distill_recipe(compose_distillation([f"out={run}", "resume=true", *DISTILLATION]))
    check_continued(run, FINISHED["distillation"])


@pytest.mark.parametrize("run", ["training"], indirect=True)
def test_resume_refuses_a_changed_key_of_an_old_recipe(run):
    with pytest.raises(ValueError, match=r"but train.learning_rate changed"):
        train_recipe(compose_recipe([f"out={run}", "resume=true", *TRAINING, "train.learning_rate=0.1"]))
