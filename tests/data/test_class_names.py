"""Classes of data and model are matched by name, and by number only where there are no names."""

import pytest
import torch

from odevit.data.class_names import align_classes, match_class_names
from odevit.data.images import DataSet, Images
from odevit.data.loading import load_data


def load_run_data(*names):
    """One image of each class, its pixels the number of the class in this data."""
    count = len(names)
    pixels = torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1).expand(count, 1, 2, 2).clone()
    part = Images(pixels, torch.arange(count))
    return DataSet("data", part, part, part, names, (0.5,), (0.5,), 2, 1)


@pytest.mark.parametrize(
    ("given", "known", "numbers"),
    [
        (("a", "b", "c"), ("c", "a", "b"), [1, 2, 0]),
        (("a", "c"), ("c", "x", "a"), [2, 0]),
        (("Golden Retriever", "sea-lion"), ("sea_lion", "golden_retriever"), [1, 0]),
        (("tench", "cock"), ("goldfish, Carassius auratus", "cock", "tench, Tinca tinca"), [2, 1]),
        (("A", "b"), ("a", "A", "b"), [1, 2]),
        (("crane", "crane"), ("crane", "crane"), [0, 1]),
        (("crane", "kite"), ("crane", "kite", "crane"), [None, 1]),
        (("a_b",), ("a b", "A-B"), [None]),
        (("3", "7"), tuple("0123456789"), [3, 7]),
        (("circle",), ("cat", "dog"), [None]),
    ],
)
def test_match_class_names(given, known, numbers):
    assert match_class_names(given, known) == numbers


def test_align_classes_renumbers_every_split_by_name(capsys):
    data = align_classes(load_run_data("Cat", "dog", "eel"), ["eel", "bat", "cat", "dog"], "the teacher", "")
    assert data.classes == ("eel", "bat", "cat", "dog")
    for part in (data.train, data.validation, data.test):
        assert part.labels.tolist() == [2, 3, 0]
        assert part.pixels[:, 0, 0, 0].tolist() == [0, 1, 2], "the images stay where they are"
    assert capsys.readouterr().out == ""


def test_align_classes_renumbers_a_stream(class_folders):
    data = load_data(class_folders(), image_size=6, resident_limit_gb=0)
    swapped = align_classes(data, ["dog", "cat"], "the teacher", "")
    for before, after in ((data.train, swapped.train), (data.test, swapped.test)):
        assert torch.equal(after.labels, 1 - before.labels)
        assert after[0][1] == 1 - before[0][1]
        assert torch.equal(after[0][0], before[0][0])


@pytest.mark.parametrize(
    ("given", "known", "labels", "classes"),
    [
        (("a", "b"), ("LABEL_0", "LABEL_1"), [0, 1], ("a", "b")),
        (("0", "1"), ("cat", "dog"), [0, 1], ("cat", "dog")),
        (("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1, 2], ("0", "1", "2")),
        # Folders are read in the order of the alphabet, in which 10 comes before 2.
        (("0", "1", "10", *"23456789"), [f"class {n}" for n in range(11)], [0, 1, 10, *range(2, 10)], None),
    ],
)
def test_align_classes_matches_numbers_and_prints_it(given, known, labels, classes, capsys):
    data = align_classes(load_run_data(*given), known, "the teacher", "")
    assert data.train.labels.tolist() == labels
    assert data.classes == (classes or tuple(str(number) for number in range(11)))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("classes are matched by number")
    assert f"0 = {data.classes[0]}, 1 = {data.classes[1]}" in line


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (("circle", "square"), ("cat", "dog")),
        (("circle", "square", "star"), ("LABEL_0", "LABEL_1")),
        (("0", "1"), ("cat", "dog", "eel")),
        (("cat", "Cat"), ("cat", "dog")),
    ],
)
def test_align_classes_lists_both_sides_for_unknown_classes(given, known):
    with pytest.raises(ValueError, match="train a head") as error:
        align_classes(load_run_data(*given), known, "the teacher", "train a head")
    assert f"the data has {len(given)} classes ({', '.join(given)})" in str(error.value)
    assert f"the teacher has {len(known)} ({', '.join(known)})" in str(error.value)
