"""A given ViT and a folder of pictures, through the command line: classes keep their names."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil, pipeline

from odevit import OdeStudent, cli, export_onnx, load
from odevit.cli import main
from odevit.distill.distillation import compose_distillation
from odevit.distill.teacher import Teacher
from odevit.train.compose import compose_recipe
from odevit.train.splits import load_run_data, read_data

NAMES = ("red fox", "eel", "Cat", "dog")  # not in the order of the alphabet, in which folders are read
QUICK = ["train.epochs=1", "train.batch_size=8", "device=cpu"]


def make_teacher(folder, names=NAMES):
    """A ViT of 5 blocks with random weights and these classes, which it gives to random pictures equally often."""
    torch.manual_seed(0)
    labels = dict(enumerate(names))
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=5, num_attention_heads=2, intermediate_size=48, image_size=8, patch_size=4,
        id2label=labels, label2id={name: number for number, name in labels.items()},
    )  # fmt: skip
    vit = ViTForImageClassification(config).eval()
    with torch.no_grad():
        torch.nn.init.normal_(vit.classifier.weight)
        logits = vit(normalised(torch.stack([pixels_of(n) for n in range(64)]))).logits
        vit.classifier.bias.copy_(-logits.mean(0))
    vit.save_pretrained(folder)
    statistics = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    ViTImageProcessorPil(size={"height": 8, "width": 8}, **statistics).save_pretrained(folder)
    return vit


def pixels_of(number):
    return torch.tensor(np.random.default_rng(number).integers(0, 256, (3, 8, 8), dtype=np.uint8))


def normalised(pixels):
    return pixels / 127.5 - 1


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """teacher/, and pictures/ in folders that are called as the teacher calls the pictures in them."""
    place = tmp_path_factory.mktemp("place")
    vit = make_teacher(place / "teacher")
    with torch.no_grad():
        for number in range(160):
            pixels = pixels_of(number)
            answer = NAMES[vit(normalised(pixels)[None]).logits.argmax().item()]
            part = "test" if number % 4 == 0 else "train"
            folder = place / "pictures" / part / answer.replace(" ", "_").lower()
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    for part in ("train", "test"):
        (place / "two" / part).mkdir(parents=True)
        for name in ("dog", "red_fox"):
            (place / "two" / part / name).symlink_to(place / "pictures" / part / name)
    return place


@pytest.fixture(scope="module")
def student(place):
    """What `odevit distill teacher=FOLDER data=FOLDER` leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["distill", "teacher=teacher", "data=pictures", *QUICK]) == 0
    return place / "runs/teacher-pictures-0"


def test_distill_command_writes_record_report_and_comparison_without_scratch(student):
    record = json.loads((student / "record.json").read_text())
    assert record["name"] == "teacher-pictures"
    assert record["teacher_top1"] == 1.0, "the folders are called as the teacher calls their pictures"
    models = [row["model"] for row in json.loads((student / "comparison.json").read_text())]
    assert models == ["teacher", "student distilled"]
    assert not (student / "scratch").exists()
    assert (student / "report.html").exists()


def test_compose_with_a_teacher_takes_shapes_and_name_from_it(student):
    config = load(student).config
    assert (config.steps, config.horizon, config.mlp_ratio, config.num_attention_heads) == (5, 5.0, 3.0, 2)
    recipe = compose_distillation(["teacher=owner/vit", "data=owner/flowers"])
    assert (recipe.name, recipe.student.steps, recipe.train.steps) == ("vit-flowers", None, [])
    assert compose_distillation(["teacher=owner/vit", "name=mine", "student.steps=7"]).name == "mine"
    assert compose_distillation(["teacher=owner/vit", "experiment=distill/digits"]).student.steps == 8
    assert compose_distillation([]).name == "distill-digits"


def test_student_labels_are_the_class_names_of_the_teacher(student):
    assert load(student).labels == dict(enumerate(NAMES))


def onnx_of(network, folder):
    """What runs the ONNX file of a model."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export_onnx(network, folder / "student.onnx")
    return onnxruntime.InferenceSession(folder / "student.onnx", providers=["CPUExecutionProvider"]).run


def test_predict_pipeline_onnx_and_eval_agree_on_class_names(student, place, tmp_path):
    network = load(student)
    files = sorted((place / "pictures/test").rglob("*.png"))
    predictions = cli.predict(files, model=student, top=4)
    classify = pipeline("image-classification", str(student))
    for path, prediction in zip(files[:5], predictions[:5], strict=True):
        piped = {each["label"]: each["score"] for each in classify(str(path), top_k=4)}
        assert {name for name, _ in prediction.labels} == set(NAMES) == set(piped)
        for name, share in prediction.labels:
            assert share == pytest.approx(piped[name], abs=1e-4)
    batch = torch.cat([network.pixels_of(Image.open(path)) for path in files])
    (answers,) = onnx_of(network, tmp_path)(None, {"pixel_values": batch.numpy()})
    for shares, prediction in zip(torch.tensor(answers).softmax(-1).tolist(), predictions, strict=True):
        assert dict(prediction.labels) == pytest.approx(dict(zip(NAMES, shares, strict=True)), abs=1e-4)
    right = [
        prediction.labels[0][0].lower().replace(" ", "_") == path.parent.name
        for path, prediction in zip(files, predictions, strict=True)
    ]
    (own,) = cli.evaluate(student, device="cpu", data=str(place / "pictures"))
    assert own.score.top1 == pytest.approx(np.mean(right))
    record = json.loads((student / "record.json").read_text())
    assert own.score.top1 == pytest.approx(record["top1"])
    # Fewer classes, in another order, are scored by their names.
    of_two = [r for r, path in zip(right, files, strict=True) if path.parent.name in ("dog", "red_fox")]
    (two,) = cli.evaluate(student, device="cpu", data=str(place / "two"))
    assert (two.score.images, two.score.top1) == (len(of_two), pytest.approx(np.mean(of_two)))


def test_load_run_data_of_a_student_has_the_teachers_pixel_statistics(student, place):
    model, pictures = load(student), str(place / "pictures")
    data = load_run_data(student, pictures, model)
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3), "and not with the statistics of these pictures"


def test_eval_scores_a_teacher_by_class_name_and_distill_refuses_other_classes(place, tmp_path, capsys):
    (score,) = cli.evaluate(place / "teacher", data=str(place / "two"), device="cpu")
    assert (score.score.top1, score.score.nfe) == (1.0, 5)
    make_teacher(tmp_path / "animals", ("cat", "dog", "a", "b"))
    words = ["distill", f"teacher={tmp_path / 'animals'}", f"data={place / 'pictures'}", f"out={tmp_path / 'run'}"]
    assert main([*words, *QUICK]) == 2
    error = capsys.readouterr().err
    for part in ("(cat, dog, eel, red_fox)", "(cat, dog, a, b)", "not exactly one for eel, red_fox", "head_only=true"):
        assert part in error


def test_match_classes_without_names_matches_by_number_and_prints_it(place, capsys):
    teacher = ViTForImageClassification.from_pretrained(place / "teacher").eval()
    teacher.config.id2label = {number: f"LABEL_{number}" for number in range(4)}
    recipe = compose_recipe([f"data={place / 'pictures'}"])
    data = Teacher(teacher).match_classes(read_data(recipe, 8))
    assert data.classes == ("cat", "dog", "eel", "red_fox")
    assert "matched by number" in capsys.readouterr().out


@pytest.mark.parametrize("processor", [True, False])
def test_train_head_only_writes_a_folder_that_predict_and_eval_accept(place, tmp_path, capsys, processor):
    body = tmp_path / "body"
    ViTForImageClassification.from_pretrained(place / "teacher").vit.save_pretrained(body)
    if processor:
        (body / "preprocessor_config.json").write_text((place / "teacher/preprocessor_config.json").read_text())
    folder, pictures = tmp_path / "headed", place / "pictures"
    assert main(["train", f"teacher={body}", "head_only=true", f"data={pictures}", f"out={folder}", *QUICK]) == 0
    record = json.loads((folder / "record.json").read_text())
    (own,) = cli.evaluate(folder, device="cpu")
    assert own.score.top1 == pytest.approx(record["top1"])
    files = sorted((pictures / "test").rglob("*.png"))
    found = cli.predict(files, model=folder, top=1)
    assert np.mean([each.labels[0][0] == path.parent.name for each, path in zip(found, files, strict=True)]) == (
        pytest.approx(record["top1"])
    )
    card = (folder / "README.md").read_text()
    assert f"{record['top1']:.2%}" in card
    assert "4 classes" in card
    assert "the pipeline works without odevit" in card
    with pytest.raises(ValueError, match="no trajectory"):
        load(folder).embed(torch.zeros(1, 3, 8, 8))
    capsys.readouterr()
    assert main(["eval", str(folder), "solver=rk4", "device=cpu"]) == 2
    assert "5 blocks are no equation; leave it out" in capsys.readouterr().err
    assert main(["analyze", str(folder)]) == 2
    assert main(["explore", str(files[0]), f"model={folder}"]) == 2
    assert capsys.readouterr().err.count("5 blocks: it has no trajectory") == 2


def test_code_of_the_model_card_runs_in_the_folder(student, monkeypatch):
    monkeypatch.chdir(student.parent)
    Image.new("RGB", (30, 40)).save("image.png")
    (code,) = re.findall(r"```python\n(.*?)```", (student / "README.md").read_text(), flags=re.S)
    names = {}
    exec(compile(code, "card", "exec"), names)
    assert {each["label"] for each in names["classify"]("image.png")} == set(NAMES)
    assert isinstance(names["student"], OdeStudent)


def test_eval_and_predict_refuse_a_vit_without_pixel_statistics(place, tmp_path, capsys):
    ViTForImageClassification.from_pretrained(place / "teacher").save_pretrained(tmp_path / "bare")
    for words in (["eval", f"data={place / 'pictures'}"], ["predict", f"model={tmp_path / 'bare'}"]):
        subject = tmp_path / "bare" if words[0] == "eval" else next((place / "pictures").rglob("*.png"))
        assert main([words[0], str(subject), *words[1:]]) == 2
        assert "image_mean and image_std, the statistics of the training images" in capsys.readouterr().err
