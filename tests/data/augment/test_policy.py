"""The policy as a whole: identity when off, decided by (seed, epoch, index) when on, all errors at once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from odevit.data.augment.policy import Augmentation
from odevit.errors import ConfigError

COUNT = 400
IMAGES = torch.rand(COUNT, 3, 12, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(COUNT) % 5
INDEX = torch.arange(COUNT) + 1000
ON = {
    "crop": 2,
    "flip": True,
    "zoom": 0.3,
    "erasing": 0.4,
    "affine": 0.4,
    "cutmix": 1.0,
    "mixup": 0.8,
    "mix_probability": 0.5,
    "label_smoothing": 0.1,
}
ALL_ON = Augmentation(**ON)  # type: ignore[arg-type]


def apply(policy: Augmentation, index: torch.Tensor = INDEX, **changes: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = index - 1000
    options = {"seed": 1, "epoch": 2} | changes
    return policy(IMAGES[at], LABELS[at], 5, index=index, **options)


def test_default_augmentation_is_the_identity_with_one_hot_targets() -> None:
    images, targets = apply(Augmentation())
    assert torch.equal(images, IMAGES)
    assert torch.equal(targets, torch.nn.functional.one_hot(LABELS, 5).float())


@pytest.mark.parametrize(
    ("policy", "share"),
    [
        (Augmentation(flip=True), 0.5),
        (Augmentation(crop=1), 8 / 9),
        (Augmentation(zoom=0.3), 1.0),
        (Augmentation(erasing=0.3), 0.3),
        (Augmentation(affine=0.3), 0.3),
        (Augmentation(mixup=0.8, mix_probability=0.3), 0.3),
        (Augmentation(cutmix=1.0, mix_probability=0.3), 0.3),
    ],
    ids=str,
)
def test_each_augmentation_changes_its_share_of_samples(policy: Augmentation, share: float) -> None:
    images, targets = apply(policy)
    touched = float((images != IMAGES).flatten(1).any(1).float().mean())
    assert touched == pytest.approx(share, abs=4 * (share * (1 - share) / COUNT) ** 0.5 + 0.01)
    torch.testing.assert_close(targets.sum(1), torch.ones(COUNT))


def test_augmentation_keeps_the_range_and_the_sum_of_targets() -> None:
    images, targets = apply(ALL_ON)
    assert -1e-6 <= float(images.min()) <= float(images.max()) <= 1 + 1e-6
    torch.testing.assert_close(targets.sum(1), torch.ones(COUNT))
    assert float(targets.min()) >= 0


def test_augmentation_does_not_depend_on_the_batch() -> None:
    whole = apply(ALL_ON)
    for size in (2, 50, 64):
        parts = [apply(ALL_ON, part) for part in INDEX.split(size)]
        assert torch.equal(whole[0], torch.cat([images for images, _ in parts]))
        assert torch.equal(whole[1], torch.cat([targets for _, targets in parts]))


def test_augmentation_depends_on_seed_and_epoch() -> None:
    first = apply(ALL_ON)[0]
    assert torch.equal(first, apply(ALL_ON)[0])
    assert not torch.equal(first, apply(ALL_ON, epoch=3)[0])
    assert not torch.equal(first, apply(ALL_ON, seed=2)[0])


def test_augmentations_do_not_change_each_others_random_numbers() -> None:
    flipped = (apply(Augmentation(flip=True))[0] == IMAGES.flip(-1)).flatten(1).all(1)
    both = apply(Augmentation(flip=True, mixup=1.0, mix_probability=0.5))
    unmixed = both[1].max(1).values == 1
    assert torch.equal((both[0] == IMAGES.flip(-1)).flatten(1).all(1)[unmixed], flipped[unmixed])


def test_augmentation_compiles_without_graph_breaks() -> None:
    """The whole policy is one graph: no branch on data, no wait for the device."""
    compiled = torch.compile(ALL_ON.__call__, backend="eager", fullgraph=True)
    for epoch in (2, 3):
        expected = apply(ALL_ON, epoch=epoch)
        got = compiled(IMAGES, LABELS, 5, seed=1, epoch=torch.tensor(epoch), index=INDEX)
        assert torch.equal(expected[0], got[0])
        assert torch.equal(expected[1], got[1])


def test_augmentation_reports_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Augmentation(crop=-1, flip=1, erasing=2.0, label_smoothing=1.0)  # type: ignore[arg-type]
    assert [problem.partition("=")[0] for problem in caught.value.problems] == [
        "crop",
        "flip",
        "erasing",
        "label_smoothing",
    ]


def test_augmentation_requires_a_probability_and_a_kind_for_mixing() -> None:
    with pytest.raises(ConfigError, match=r"set mixup=0\.8 or cutmix=1\.0 too"):
        Augmentation(mix_probability=0.5)
    with pytest.raises(ConfigError, match=r"set mix_probability=0\.5 too"):
        Augmentation(mixup=0.5)


def test_augmentation_refuses_text_in_every_field() -> None:
    for field in fields(Augmentation):
        with pytest.raises(ConfigError, match=f"{field.name}='much'"):
            replace(Augmentation(), **{field.name: "much"})
