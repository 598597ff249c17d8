"""What a folder gets when nothing is said, and that whatever is said stands."""

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from odevit.cli import main
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.data.loading import DataSummary, inspect_data
from odevit.distill.distillation import DistillRecipe
from odevit.train.auto_config import LARGEST, SIDES, auto_configure, by_data, halvings, image_size
from odevit.train.classifier import train_recipe
from odevit.train.compose import compose_recipe, options
from odevit.train.recipe import Recipe
from odevit.train.recipe_keys import quoted
from tests.data.formats import drawn
from tests.pictures import SHAPES, folder_of_shapes
from tests.tiny import tiny_model

SMALL = DataSummary("pets", images=188, classes=4, side=66, colour=True)
LARGE = DataSummary("owner/birds", images=100_000, classes=200, side=300, colour=True)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return folder_of_shapes(tmp_path_factory.mktemp("data") / "my shapes", 8)


def to_overrides(facts, device="cpu", **given):
    return by_data(facts, Recipe(), given, device)


def test_small_row_groups_are_not_judged_by_the_first(tmp_path):
    """Four small grey pictures, a row group of their own, and then what the others are like."""
    encoded = []
    for each in [drawn(8, 8, 1)] * 4 + [drawn(32, 32)] * 96:
        file = BytesIO()
        each.save(file, "PNG")
        encoded.append({"bytes": file.getvalue(), "path": None})
    table = pa.table({"image": encoded, "label": [0, 1] * 50})
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet", row_group_size=4)
    facts = inspect_data(str(tmp_path))
    assert (facts.side, facts.colour) == (32, True)


def test_facts_are_counted_and_measured_without_decoding(shapes):
    facts = inspect_data(str(shapes))
    # Of 32 images a fifth is for the test, and a tenth of the rest is held out, each at least one of a class.
    assert (facts.name, facts.images, facts.classes, facts.colour) == ("my shapes", 20, len(SHAPES), True)
    assert 56 <= facts.side <= 72


def test_grey_pictures_and_unreadable_ones(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("L", (40, 20 + number)).save(tmp_path / name / f"{number}.png")
        (tmp_path / name / "0.png").write_bytes(b"not an image")
    facts = inspect_data(str(tmp_path))
    assert not facts.colour
    assert 21 <= facts.side <= 25
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"not an image")
    with pytest.raises(ValueError, match="can be read"):
        inspect_data(str(tmp_path))


@pytest.mark.parametrize(("side", "cpu", "cuda"), [(5, 8, 8), (28, 24, 24), (66, 64, 64), (640, 64, 128)])
def test_images_are_shrunk_as_little_as_the_device_allows(side, cpu, cuda):
    assert (image_size(side, "cpu"), image_size(side, "cuda")) == (cpu, cuda)


@pytest.mark.parametrize("side", [*SIDES, 20, 28, 100, 224, 256])
def test_a_tokeniser_divides_the_image_evenly(side):
    assert side % 2 ** halvings(side) == 0
    if side in SIDES:
        assert side // 2 ** halvings(side) in (4, 6, 8)


def test_the_model_and_the_recipe_go_with_the_data_and_the_device():
    small = to_overrides(SMALL)
    assert (small["name"], small["model"], small["train"], small["train.epochs"]) == ("pets", "small", "small", 60)
    assert to_overrides(SMALL, "cuda")["train"] == "small"
    large = to_overrides(LARGE, "cuda")
    assert (large["name"], large["model"], large["train"]) == ("birds", "tiny-conv", "fast")
    assert large["model.image_size"] == LARGEST["cuda"]
    assert "train.epochs" not in large
    assert to_overrides(LARGE)["train.epochs"] == 5


def test_a_folder_trains_at_its_own_size_under_its_own_name(shapes):
    recipe, _, said = auto_configure([f"data={shapes}", "device=cpu"], Recipe)
    recipe.check()
    config = OdeViTConfig(**recipe.model_settings())
    assert (recipe.name, str(recipe.folder)) == ("my-shapes", "runs/my-shapes-0")
    assert 48 <= config.image_size <= 64
    assert (recipe.train.precision, recipe.train.batch_size) == ("fp32", 8)
    text = "\n".join(said)
    for part in (
        "4 classes",
        "colour",
        f"model.image_size={config.image_size}",
        "train.batch_size=8",
        "name=my-shapes",
    ):
        assert part in text
    assert said[-1].endswith(f"head_only=true 'data={shapes}'"), "to be copied as it is"


def test_what_was_typed_stands(shapes):
    words = ["name=mine", "model.image_size=40", "train.batch_size=4", "train.epochs=2", "data.augmentation.flip=false"]
    recipe, _, said = auto_configure([f"data={shapes}", *words, "device=cpu"], Recipe)
    recipe.check()
    assert (recipe.name, recipe.train.batch_size, recipe.train.epochs) == ("mine", 4, 2)
    assert recipe.model_settings()["image_size"] == 40
    assert not recipe.data.augmentation.flip
    assert not [word for word in words if word.partition("=")[0] + "=" in "\n".join(said)]


@pytest.mark.parametrize("word", ["device=abc", "model.image_size=abc", "data.validation=nan", "train.batch_size=0"])
def test_what_is_wrong_is_said_instead_of_what_was_chosen(word, shapes, capsys):
    assert main(["train", f"data={shapes}", word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert word.partition("=")[0].rpartition(".")[2] in said.err


def test_a_model_that_was_named_keeps_its_size_and_that_is_said(shapes):
    recipe, _, said = auto_configure([f"data={shapes}", "model=digits", "device=cpu"], Recipe)
    assert recipe.model_settings()["image_size"] == 8
    assert "resized to 8 px" in said[0]


def test_a_recipe_for_a_gpu_runs_on_a_cpu(shapes):
    """The line of docs/training.md for a folder."""
    words = [f"data={shapes}", "model=tiny-conv", "train=fast", "train.epochs=50", "device=cpu"]
    recipe, _, said = auto_configure(words, Recipe)
    recipe.check()
    t = recipe.on("cpu").train
    assert (t.precision, t.compile, t.capture) == ("fp32", False, False)
    assert (t.batch_size, t.epochs, t.optimizer) == (8, 50, "muon")
    assert "train.batch_size=8" in "\n".join(said)
    gpu = recipe.on("cuda").train
    assert (gpu.precision, gpu.compile, gpu.capture) == ("bf16", True, True)
    insisted = auto_configure([*words, "train.precision=bf16"], Recipe).recipe
    assert insisted.on("cpu").train.precision == "bf16"


@pytest.mark.parametrize("name", [name for name in options("experiment") if "distill" not in name])
def test_no_recipe_asks_a_cpu_for_bf16(name):
    t = compose_recipe([f"experiment={name}"]).on("cpu").train
    assert (t.precision, t.compile) == ("fp32", False)


def test_an_experiment_chooses_for_itself(shapes):
    words = ["experiment=fast/cifar10", f"data.source={quoted(str(shapes))}", "device=cpu"]
    assert auto_configure(words, Recipe) == (compose_recipe(words), [], [])


def test_digits_are_as_they_were():
    recipe, _, said = auto_configure([], Recipe)
    assert (recipe, said) == (compose_recipe([]), [])


@pytest.mark.parametrize("name", ["1e3", "true", "null", "nan", "it's"])
def test_a_run_is_called_as_its_folder_whatever_that_looks_like(name, tmp_path):
    folder_of_shapes(tmp_path / name, 4)
    recipe, _, _ = auto_configure([f"data={tmp_path / name}", "device=cpu"], Recipe)
    assert recipe.name == name.replace("'", "-")


def test_what_is_swept_is_not_chosen(shapes):
    chosen = auto_configure([f"data={shapes}", "device=cpu"], Recipe, swept=["train.epochs=1,2", "seed=0,1"])
    assert not [word for word in chosen.overrides if word.startswith("train.epochs")]
    assert "model=small" in chosen.overrides


def test_a_head_takes_the_size_of_its_teacher(shapes):
    recipe, _, said = auto_configure([f"data={shapes}", "teacher=somewhere", "head_only=true", "device=cpu"], Recipe)
    assert (recipe.name, recipe.train.epochs) == ("somewhere-my-shapes", 10)
    assert not [line for line in said if "image_size" in line or "pretrained" in line]
    whole, *_ = auto_configure([f"data={shapes}", "teacher=somewhere", "device=cpu"], Recipe)
    assert (whole.train.layer_decay, whole.train.batch_size) == (0.75, 8)
    assert (recipe.data.augmentation.crop, whole.data.augmentation.crop) == (0, 0.125)
    assert whole.data.augmentation.label_smoothing == 0, "a teacher keeps what it knows of wrong classes"


def test_weights_to_start_from_bring_their_size(shapes, tmp_path):
    tiny_model(image_size=16, num_labels=4, id2label=dict(enumerate(SHAPES))).save_pretrained(tmp_path / "start")
    words = [f"data={shapes}", f"init_from={tmp_path / 'start'}", "train.epochs=1", f"out={tmp_path / 'run'}"]
    recipe, _, said = auto_configure([*words, "device=cpu"], Recipe)
    assert not [line for line in said if "model" in line]
    train_recipe(recipe)
    assert OdeViTConfig.from_pretrained(tmp_path / "run").image_size == 16


def test_a_teacher_that_is_trained_here_sees_the_folder_at_its_size(shapes):
    recipe, _, _ = auto_configure([f"data={shapes}", "device=cpu"], DistillRecipe)
    recipe.check()
    assert recipe.name == "distill-my-shapes"
    assert recipe.model_settings()["image_size"] >= 48
    assert recipe.model_settings()["depth"] == "stacked"
    assert (recipe.train.batch_size, recipe.teacher_train.batch_size) == (8, 8)
