"""What the page is told: right numbers, plain sentences, and the same for ten who ask at once."""

import base64
import gc
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest
import torch

from odevit import load
from odevit.explorer.catalog import ModelCatalog
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.explorer import Explorer
from odevit.explorer.uploads import to_data_url

FROG = {"model": "cifar10", "picture": "frog"}


@pytest.fixture(scope="module")
def explorer(rooms):
    return Explorer(ModelCatalog(rooms))


def test_the_page_lists_bundled_models_and_those_of_the_folder(explorer):
    answer = explorer.options("?steps=24")
    assert answer["models"] == ["cifar10", "runs/small", "runs/student", "runs/student/teacher"]
    assert answer["state"]["model"] == "cifar10"
    assert answer["state"]["steps"] == 24


def test_the_answer_is_the_models_own(explorer):
    model = load("cifar10")
    with torch.no_grad():
        output = model(model.pixels_of(DRAWINGS["frog"]()), return_dict=True)
    numbers = explorer.trace(FROG)
    share, label = output.logits.softmax(-1)[0].max(dim=-1)
    assert numbers["prediction"]["label"] == model.labels[int(label)]
    assert numbers["prediction"]["probability"] == pytest.approx(float(share), abs=1e-5)
    assert numbers["prediction"]["nfe"] == output.stats.nfe
    assert not numbers["prediction_changed"]


@pytest.mark.parametrize("model", ["cifar10", "runs/small", "runs/student", "runs/student/teacher"])
def test_what_is_shown_survives_json(explorer, model):
    question = {"model": model, "picture": "ship", "row": 1, "column": 2}
    for ask in (explorer.trace, explorer.stability, explorer.perturb):
        answer = ask(question)
        assert "problem" not in answer
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert (explorer.trace(question)["teacher_path"] is not None) == (model == "runs/student")


def test_another_way_says_whether_the_answer_changed(explorer):
    numbers = explorer.trace({**FROG, "solver": "euler", "steps": 1, "horizon": 30.0})
    assert numbers["solver_config"] == {"solver": "euler", "steps": 1, "horizon": 30.0}
    assert numbers["default_prediction"]["label"] == "frog"
    assert numbers["prediction_changed"] == (numbers["prediction"]["label"] != "frog")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "../../etc"},
        {"model": "/etc"},
        {"model": None},
        {"picture": "/etc/passwd"},
        {"picture": "data:image/png;base64,AAAA"},
        {"picture": 7},
        {"steps": 10**9},
        {"steps": -3},
        {"steps": "many"},
        {"horizon": 1e300},
        {"horizon": float("nan")},
        {"solver": "magic"},
        {"solver": ["rk4"]},
    ],
)
def test_a_question_that_cannot_be_answered_gets_a_sentence(explorer, changes):
    for ask in (explorer.trace, explorer.stability, explorer.perturb, explorer.figures):
        answer = ask({**FROG, "row": 0, "column": 0, **changes})
        assert list(answer) == ["problem"]
        assert 10 < len(answer["problem"]) < 500


@pytest.mark.parametrize("place", [{"row": 99, "column": 0}, {"row": -1, "column": 0}, {"row": "1", "column": 1}, {}])
def test_a_patch_that_is_not_there(explorer, place):
    assert "expected" in explorer.perturb({**FROG, **place})["problem"]


def test_ten_at_once_get_the_answers_they_get_alone(explorer):
    pictures = [*DRAWINGS, *(to_data_url(draw().rotate(90)) for draw in DRAWINGS.values())]
    alone = [explorer.trace({**FROG, "picture": picture})["probabilities"] for picture in pictures]
    with ThreadPoolExecutor(10) as users:
        together = users.map(lambda picture: explorer.trace({**FROG, "picture": picture})["probabilities"], pictures)
    assert list(together) == alone


def test_two_hundred_integrations_leave_no_tensor_behind(explorer):
    def left(times):
        for steps in range(1, times + 1):
            explorer.trace({"model": "runs/small", "picture": "frog", "steps": 1 + steps % 5})
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    first = left(5)  # what is made once, and kept
    assert left(200) <= first


def test_figures_are_files(explorer):
    question = {"model": "runs/small", "picture": "frog", "row": 0, "column": 1}
    archive = zipfile.ZipFile(BytesIO(base64.b64decode(explorer.figures(question)["data"])))
    assert {*archive.namelist()} == {"probabilities.png", "path.png", "attention.png", "two-paths.png", "numbers.json"}
