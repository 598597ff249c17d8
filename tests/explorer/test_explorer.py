"""Responses of the explorer: the numbers of the model, errors as messages, the same for ten requests at once."""

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
def explorer(model_folder):
    return Explorer(ModelCatalog(model_folder))


def test_options_list_bundled_models_and_those_of_the_folder(explorer):
    answer = explorer.options("?steps=24")
    assert answer["models"] == ["cifar10", "runs/small", "runs/student", "runs/student/teacher"]
    assert answer["state"]["model"] == "cifar10"
    assert answer["state"]["steps"] == 24


def test_trace_makes_the_models_own_prediction(explorer):
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
def test_responses_are_valid_json(explorer, model):
    request = {"model": model, "picture": "ship", "row": 1, "column": 2}
    for method in (explorer.trace, explorer.stability, explorer.perturb):
        answer = method(request)
        assert "problem" not in answer
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert (explorer.trace(request)["teacher_path"] is not None) == (model == "runs/student")


def test_trace_reports_whether_the_prediction_changed(explorer):
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
def test_invalid_requests_get_a_message(explorer, changes):
    for method in (explorer.trace, explorer.stability, explorer.perturb, explorer.figures):
        answer = method({**FROG, "row": 0, "column": 0, **changes})
        assert list(answer) == ["problem"]
        assert 10 < len(answer["problem"]) < 500


@pytest.mark.parametrize("place", [{"row": 99, "column": 0}, {"row": -1, "column": 0}, {"row": "1", "column": 1}, {}])
def test_perturb_refuses_a_patch_outside_the_image(explorer, place):
    assert "expected" in explorer.perturb({**FROG, **place})["problem"]


def test_ten_requests_at_once_get_the_same_responses(explorer):
    pictures = [*DRAWINGS, *(to_data_url(draw().rotate(90)) for draw in DRAWINGS.values())]
    alone = [explorer.trace({**FROG, "picture": picture})["probabilities"] for picture in pictures]
    with ThreadPoolExecutor(10) as users:
        together = users.map(lambda picture: explorer.trace({**FROG, "picture": picture})["probabilities"], pictures)
    assert list(together) == alone


def test_requests_leave_no_tensors_in_memory(explorer):
    def tensors_after(times):
        for steps in range(1, times + 1):
            explorer.trace({"model": "runs/small", "picture": "frog", "steps": 1 + steps % 5})
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    first = tensors_after(5)  # caches are filled by then
    assert tensors_after(200) <= first


def test_figures_is_a_zip_of_every_figure(explorer):
    request = {"model": "runs/small", "picture": "frog", "row": 0, "column": 1}
    archive = zipfile.ZipFile(BytesIO(base64.b64decode(explorer.figures(request)["data"])))
    assert {*archive.namelist()} == {"probabilities.png", "path.png", "attention.png", "two-paths.png", "numbers.json"}
