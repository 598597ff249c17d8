"""More images than labels: folders of pictures beside the data, in memory or streamed."""

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image
from PIL import Image as Picture

from odevit.data.images import Images, ImageStream
from odevit.data.loading import load_data
from odevit.data.source import find_source
from odevit.data.unlabelled import find_unlabelled
from odevit.distill.distill_task import DistillTask
from odevit.distill.distillation import compose_distillation
from tests.distill.test_phases import recipe, vit  # noqa: F401 (a fixture)


def save_pictures(folder, count, grey):
    folder.mkdir(parents=True)
    for number in range(count):
        Picture.fromarray(np.full((10, 12, 3), grey, np.uint8)).save(folder / f"{number}.png")
    return folder


def test_unlabelled_folders_add_training_images_only(tmp_path):
    save_pictures(tmp_path / "more" / "deep", 3, 10)
    save_pictures(tmp_path / "more" / "train" / "cats", 2, 20)
    save_pictures(tmp_path / "more" / "test" / "cats", 4, 30)
    data = load_data("digits")
    both = load_data("digits", image_size=8, unlabelled=[tmp_path / "more"])
    added = both.train.pixels[len(data.train) :]
    assert sorted(added.float().mean((1, 2, 3)).tolist()) == [10, 10, 10, 20, 20]
    assert torch.equal(both.train.pixels[: len(data.train)], data.train.pixels)
    for part in ("validation", "test"):
        assert torch.equal(getattr(both, part).pixels, getattr(data, part).pixels)
    assert (both.mean, both.std) == (data.mean, data.std)


def test_find_pictures_ignores_hidden_files(tmp_path):
    """Thumbnails of a file manager, and the notes that a Mac leaves beside every file."""
    for name in ("cat", "dog"):
        save_pictures(tmp_path / "pets" / name, 12, 10)
        save_pictures(tmp_path / "pets" / name / ".thumbnails", 1, 20)
        (tmp_path / "pets" / name / "._1.png").write_text("no picture")
        (tmp_path / "pets" / name / "._captions.parquet").write_text("no table")
    assert sum(map(len, find_source(tmp_path / "pets").splits.values())) == 24
    assert len(find_unlabelled([tmp_path / "pets"]).splits["unlabelled"]) == 24


def test_unlabelled_images_have_the_size_of_the_data(tmp_path):
    data = load_data("digits", unlabelled=[save_pictures(tmp_path / "more", 3, 10)])
    assert data.train.size == (8, 8)


def test_cache_keeps_statistics_of_streams_and_of_data_apart(tmp_path, monkeypatch):
    """Unlabelled images that do not fit make a stream of it all, of which a sample is measured; and that is kept."""
    monkeypatch.setattr("odevit.data.images._SAMPLE", 4)
    save_pictures(tmp_path / "data" / "train" / "cat", 12, 10)
    save_pictures(tmp_path / "data" / "train" / "dog", 12, 20)
    save_pictures(tmp_path / "data" / "test" / "dog", 1, 20)
    more, cached = save_pictures(tmp_path / "more", 1, 30), {"image_size": 2, "cache": tmp_path / "cache"}
    limit = {"resident_limit_gb": 25 * 3 * 4 / 2**30}
    streamed = load_data(tmp_path / "data", unlabelled=[more], **cached, **limit)
    resident, fresh = load_data(tmp_path / "data", **cached, **limit), load_data(tmp_path / "data", image_size=2)
    assert isinstance(streamed.train, ImageStream)
    assert isinstance(resident.train, Images)
    assert resident.mean == fresh.mean


def test_cache_keeps_decoded_unlabelled_images(tmp_path, monkeypatch):
    more, settings = save_pictures(tmp_path / "more", 3, 10), {"image_size": 8, "cache": tmp_path / "cache"}
    first = load_data("digits", unlabelled=[more], **settings)
    monkeypatch.setattr("odevit.data.loading.decode_records", None)
    assert torch.equal(load_data("digits", unlabelled=[more], **settings).train.pixels, first.train.pixels)
    with pytest.raises(TypeError):  # other images are decoded
        load_data("digits", unlabelled=[save_pictures(tmp_path / "others", 3, 20)], **settings)


def test_unlabelled_folders_do_not_repeat_images_of_the_data(tmp_path):
    for name, grey in (("cat", 10), ("dog", 20)):
        save_pictures(tmp_path / "all" / "labelled" / name, 12, grey)
    save_pictures(tmp_path / "all" / "more", 3, 30)
    folder = tmp_path / "all" / "labelled"
    data, both = (load_data(folder, image_size=10, unlabelled=more) for more in ([], [tmp_path / "all"]))
    assert both.train.pixels[len(data.train) :].unique().tolist() == [30]
    with pytest.raises(ValueError, match="no images to train on but those of the data; expected files"):
        load_data(folder, image_size=10, unlabelled=[folder])


def test_find_pictures_excludes_linked_images_of_the_data(tmp_path):
    """A pool of pictures that a data set points into, and a folder that points into a data set."""
    pool, more = save_pictures(tmp_path / "pool", 24, 10), save_pictures(tmp_path / "more", 2, 30)
    for number, picture in enumerate(sorted(pool.iterdir())[:20]):
        name = tmp_path / "data" / ("test" if number % 5 == 0 else "train") / ("cat" if number % 2 else "dog")
        name.mkdir(parents=True, exist_ok=True)
        (name / picture.name).symlink_to(picture)
        (more / f"link-{picture.name}").hardlink_to(picture)
    own = find_source(tmp_path / "data").files
    assert [len(find_unlabelled([folder], own).splits["unlabelled"]) for folder in (pool, more)] == [4, 2]


def test_unlabelled_folders_may_hold_pictures_and_tables(tmp_path):
    folder = save_pictures(tmp_path / "both", 3, 10)
    picture = {"bytes": (folder / "0.png").read_bytes(), "path": None}
    Dataset.from_dict({"text": ["a caption"]}).to_parquet(folder / "captions.parquet")
    features = Features({"img": Image()})
    Dataset.from_dict({"img": [picture] * 5}, features=features).to_parquet(folder / "few.parquet")
    Dataset.from_dict({"img": []}, features=features).to_parquet(folder / "none.parquet")
    data = load_data("digits")
    for limit in (4.0, 0.0):
        both = load_data("digits", image_size=8, unlabelled=[folder], resident_limit_gb=limit)
        assert len(both.train) == len(data.train) + 8
    for path in folder.glob("*.png"):
        path.unlink()
    (folder / "few.parquet").unlink()
    with pytest.raises(ValueError, match=r"holds no images to train on; .* or parquet files with a column of images"):
        load_data("digits", unlabelled=[folder])


def test_unlabelled_parquet_files_need_no_labels(tmp_path):
    pictures = [{"bytes": (save_pictures(tmp_path / "p", 1, 7) / "0.png").read_bytes(), "path": None}]
    for name in ("train-00000-of-00001", "test-00000-of-00001"):
        (tmp_path / "hub").mkdir(exist_ok=True)
        Dataset.from_dict({"img": pictures}, features=Features({"img": Image()})).to_parquet(
            tmp_path / "hub" / f"{name}.parquet"
        )
    data = load_data("digits")
    both = load_data("digits", image_size=8, unlabelled=[tmp_path / "hub"])
    assert len(both.train) == len(data.train) + 1


def test_unlabelled_images_are_streamed_in_the_same_order(tmp_path):
    folders = [save_pictures(tmp_path / "a", 2, 10), save_pictures(tmp_path / "b", 3, 20)]
    memory = load_data("digits")
    all_of_it, streamed = (
        load_data("digits", image_size=8, unlabelled=folders, resident_limit_gb=limit) for limit in (4, 1e-9)
    )
    assert isinstance(all_of_it.train, Images)
    assert isinstance(streamed.train, ImageStream)
    assert isinstance(streamed.validation, ImageStream)
    assert len(streamed.train) == len(all_of_it.train) == len(memory.train) + 5
    for index in (0, len(memory.train) - 1, len(memory.train), len(memory.train) + 4):
        assert torch.equal(streamed.train[index][0], all_of_it.train.pixels[index])


@pytest.mark.parametrize("limit", [4.0, 0.0])
def test_build_trains_on_unlabelled_images_and_validates_on_the_data(vit, tmp_path, limit):  # noqa: F811
    more = save_pictures(tmp_path / "more", 40, 90)
    limits = {"data.resident_limit_gb": limit, "alignment.images": 32}
    task = DistillTask(recipe(vit, out=tmp_path / "run", unlabelled=f"{more},{more}", **limits))
    task.folder.acquire(task.recipe)
    task.build()
    data = load_data("digits")
    assert len(task.data.train) == len(data.train) + 80
    assert len(task.validation.images) == len(data.validation)
    batch = next(iter(task.validation))
    assert torch.equal(batch["labels"], task.teacher(batch["pixel_values"]).logits.argmax(-1))


def test_load_data_reports_unlabelled_folders_without_images(tmp_path):
    (tmp_path / "empty").mkdir()
    validate = save_pictures(tmp_path / "broken", 2, 10)
    (validate / "1.png").write_text("no picture")
    for folder, message in (
        ("empty", "unlabelled='.*empty' holds no images to train on; expected files ending in"),
        ("absent", "unlabelled='.*absent' is no folder"),
        ("broken", r"(?s)1 image cannot be read:.*1\.png.*set skip_unreadable=True"),
    ):
        with pytest.raises(ValueError, match=message):
            load_data("digits", image_size=8, unlabelled=[tmp_path / folder])
    with pytest.warns(UserWarning, match="skipped: 1 image cannot be read"):
        both = load_data("digits", image_size=8, unlabelled=[validate], skip_unreadable=True)
    assert len(both.train) == len(load_data("digits").train) + 1


def test_unlabelled_and_cross_entropy_exclude_each_other():
    given = compose_distillation(["teacher=FOLDER", "unlabelled=A,it's B", "phases.rollout.objective.cross_entropy=1"])
    assert given.unlabelled == ["A", "it's B"]
    assert any("unlabelled= has no labels to learn" in problem for problem in given.problems())
