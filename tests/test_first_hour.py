"""The first hour of three users: one has a folder of images, one a pretrained ViT, one compares solvers.

Every number that a command prints is computed again in another way.
"""

import json
from types import SimpleNamespace

import onnxruntime
import pytest
import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    BitImageProcessorPil,
    Dinov2Config,
    Dinov2Model,
    pipeline,
)
from transformers.image_utils import load_image

import odevit
from odevit import cli
from odevit.cli import main
from odevit.errors import OdeVitWarning
from tests.pictures import SHAPES, folder_as_found

SAME = {"rtol": 0, "atol": 1e-4}
QUICK = ["device=cpu", "data.skip_unreadable=true", "train.log_every=100"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of pictures, and a pretrained ViT that has its own idea of how to look at a picture."""
    home = tmp_path_factory.mktemp("home")
    folder_as_found(home / "photos", train=12, test=8)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    Dinov2Model(Dinov2Config(**shape, image_size=28, patch_size=7, initializer_range=0.2)).save_pretrained(home / "vit")
    BitImageProcessorPil(
        size={"shortest_edge": 36},
        crop_size={"height": 28, "width": 28},
        resample=2,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(home / "vit")
    return home


@pytest.fixture(scope="module")
def run(home):
    """What the engineer with the folder has after a minute, without a word about models or sizes."""
    with pytest.warns(OdeVitWarning, match=r"torn\.jpg"):
        assert main(["train", f"data={home / 'photos'}", "train.epochs=12", f"out={home / 'run'}", *QUICK]) == 0
    return home / "run"


def pictures_of(home):
    """The pictures to test on, and the number of the class of each."""
    paths = [sorted((home / "photos/test" / shape).iterdir()) for shape in SHAPES]
    labels = [number for number, some in enumerate(paths) for _ in some]
    return [path for some in paths for path in some], torch.tensor(labels)


def shares(folder, paths):
    """P(class) of every picture as predict, the pipeline, the Auto classes, a reloaded model and ONNX give it."""
    said = {"predict": [dict(prediction.labels) for prediction in cli.predict(paths, model=folder, top=len(SHAPES))]}
    classify = pipeline("image-classification", str(folder), device="cpu")
    answers = classify([str(path) for path in paths], top_k=len(SHAPES))
    said["pipeline"] = [{answer["label"]: answer["score"] for answer in some} for some in answers]
    tables = {name: torch.tensor([[row[shape] for shape in SHAPES] for row in rows]) for name, rows in said.items()}
    processor = AutoImageProcessor.from_pretrained(folder)
    pixels = processor([load_image(str(path)) for path in paths], return_tensors="pt")["pixel_values"]
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    assert [model.config.id2label[number] for number in range(len(SHAPES))] == list(SHAPES)
    with torch.no_grad():
        tables["auto"] = model(pixels).logits.softmax(-1)
        if hasattr(model, "depth"):  # ours; a ViT with a new head is transformers' own
            tables["reloaded"] = odevit.load(folder)(pixels).logits.softmax(-1)
            odevit.export_onnx(model, folder / "model.onnx")
            (logits,) = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"pixel_values": pixels.numpy()})
            tables["onnx"] = torch.from_numpy(logits).softmax(-1)
    return tables


def score(table, labels):
    """Top-1 and mean cross entropy of answers."""
    right = table.gather(1, labels[:, None]).log().mean()
    return SimpleNamespace(top1=(table.argmax(1) == labels).double().mean().item(), loss=-right.item())


def check(folder, home):
    """Everyone gives the same answers, and scores what training and `odevit eval` wrote down."""
    paths, labels = pictures_of(home)
    tables = shares(folder, paths)
    for name, table in tables.items():
        torch.testing.assert_close(table, tables["predict"], **SAME, msg=lambda text, name=name: f"{name}: {text}")
        assert table.argmax(1).tolist() == tables["predict"].argmax(1).tolist(), name
    (evaluated,) = cli.evaluate(folder, device="cpu")
    own = score(tables["predict"], labels)
    assert evaluated.score.images == len(paths)
    assert own.top1 == evaluated.score.top1 == json.loads((folder / "record.json").read_text())["top1"]
    assert own.loss == pytest.approx(evaluated.score.loss, abs=1e-4)
    return evaluated.score


@pytest.fixture
def evaluating():
    """A run that skipped an image warns again whenever its data is read."""
    with pytest.warns(OdeVitWarning, match=r"torn\.jpg"):
        yield


def test_train_names_an_unreadable_image_and_what_to_type(home, capsys):
    words = ["train", f"data={home / 'photos'}", f"out={home / 'torn'}", "device=cpu"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "torn.jpg" in said
    assert "data.skip_unreadable=true" in said
    assert "notes.txt" not in said
    assert not (home / "torn").exists(), "nothing is left to stand in the way of the next try"


def test_user_trains_on_a_folder_of_images(home, run, evaluating):
    config = json.loads((run / "config.json").read_text())
    assert config["image_size"] >= 48, "the pictures are not shrunk to digits"
    assert json.loads((run / "record.json").read_text())["name"] == "photos"
    check(run, home)
    assert "shapes" not in (run / "README.md").read_text()


def test_user_distills_a_vit(home, evaluating):
    words = [f"data={home / 'photos'}", *QUICK]
    head, student = home / "head", home / "student"
    assert main(["train", f"teacher={home / 'vit'}", "head_only=true", *words, "train.epochs=8", f"out={head}"]) == 0
    teacher = check(head, home)
    assert main(["distill", f"teacher={head}", *words, "train.epochs=4", f"out={student}"]) == 0
    check(student, home)
    record = json.loads((student / "record.json").read_text())
    assert record["teacher"]["top1"] == teacher.top1
    paths, labels = pictures_of(home)
    with torch.no_grad():  # the teacher as transformers alone has it, on its own pixels
        pixels = AutoImageProcessor.from_pretrained(home / "vit")([load_image(str(path)) for path in paths])
        logits = AutoModelForImageClassification.from_pretrained(head)(torch.tensor(pixels["pixel_values"])).logits
    assert score(logits.softmax(-1), labels).loss == pytest.approx(teacher.loss, abs=1e-4)
    agreed = sum(
        cli.predict([path], model=student, top=1)[0].labels[0][0] == SHAPES[answer]
        for path, answer in zip(paths, logits.argmax(1).tolist(), strict=True)
    )
    assert record["seeds"][0]["agreement"] == pytest.approx(agreed / len(paths))


def test_user_compares_solvers(home, run, evaluating):
    ways = {"solver": "euler,heun", "steps": "4,8"}
    words = [f"{key}={value}" for key, value in ways.items()]
    assert main(["eval", str(run), *words, "device=cpu", f"out={home / 'scores.json'}"]) == 0
    rows = json.loads((home / "scores.json").read_text())["scores"]
    assert [(row["solver"], row["steps"]) for row in rows] == [("euler", 4), ("euler", 8), ("heun", 4), ("heun", 8)]
    paths, labels = pictures_of(home)
    model = odevit.load(run)
    pixels = torch.cat([model.pixels_of(load_image(str(path))) for path in paths])
    for row in rows:
        with torch.no_grad():
            output = model(pixels, solver=row["solver"], steps=row["steps"])
        again = score(output.logits.softmax(-1), labels)
        assert (again.top1, output.stats.nfe) == (row["score"]["top1"], row["score"]["nfe"])
        assert again.loss == pytest.approx(row["score"]["loss"], abs=1e-4)
    assert main(["analyze", str(run), "device=cpu", "limit=8"]) == 0
    analysis = json.loads((run / "analysis/analysis.json").read_text())
    with torch.no_grad():
        answers = model(pixels).logits.argmax(1)
    chosen = analysis["answers"]["images"]
    assert analysis["answers"]["answers"] == answers[chosen].tolist()
    assert analysis["answers"]["labels"] == labels[chosen].tolist()
    assert analysis["sweep"]["top1"]["hits"] == int((answers == labels)[chosen].sum())
    assert (run / "analysis/report.html").stat().st_size > 10_000
