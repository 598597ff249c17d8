"""Batches: the same bits from any number of ranks, from any starting point, from memory or from disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from odevit.data.augment.policy import Augmentation
from odevit.data.batches import Batches, DeviceBatches, StreamBatches, make_batches, prefetched
from odevit.data.images import Images
from odevit.data.loading import load_data

ALL_ON = Augmentation(
    crop=1,
    flip=True,
    zoom=0.4,
    erasing=0.3,
    affine=0.3,
    mixup=0.8,
    cutmix=1.0,
    mix_probability=0.7,
    label_smoothing=0.1,
)
DIGITS = load_data()


def batches(batch_size: int, **changes: Any) -> DeviceBatches:
    options: dict[str, Any] = {"mean": DIGITS.mean, "std": DIGITS.std, "num_classes": 10, "seed": 5} | changes
    images = options.pop("images", DIGITS.train)
    return DeviceBatches(images, batch_size, **options)


def train(batch_size: int, **changes: Any) -> DeviceBatches:
    return batches(batch_size, **({"augmentation": ALL_ON, "shuffle": True, "drop_last": True} | changes))


def joined(some: Any, key: str = "pixel_values") -> torch.Tensor:
    return torch.cat([batch[key] for batch in some])


def test_batches_without_augmentation_are_normalised_and_in_order() -> None:
    assert isinstance(DIGITS.validation, Images)
    made = list(batches(50, images=DIGITS.validation))
    assert [len(batch["labels"]) for batch in made] == [50, 50, 43]
    assert torch.equal(joined(made, "labels"), DIGITS.validation.labels)
    back = joined(made) * torch.tensor(DIGITS.std)[:, None, None] + torch.tensor(DIGITS.mean)[:, None, None]
    assert torch.equal((back * 255).round().byte(), DIGITS.validation.pixels)


def test_batches_normalise_training_pixels() -> None:
    pixels = joined(batches(100, augmentation=Augmentation(), shuffle=True))
    assert float(pixels.mean()) == pytest.approx(0, abs=1e-5)
    assert float(pixels.std()) == pytest.approx(1, abs=1e-3)


def test_batches_with_identity_augmentation_have_one_hot_targets() -> None:
    batch = next(iter(batches(64, augmentation=Augmentation())))
    assert batch["labels"].dtype == torch.float32
    assert torch.equal(batch["labels"].argmax(1), DIGITS.train.labels[:64])
    assert torch.equal(batch["labels"].sum(1), torch.ones(64))


@pytest.mark.parametrize("world", [2, 3])
def test_batches_of_all_ranks_equal_one_process_bit_for_bit(world: int) -> None:
    one = train(24 * world)
    ranks = [train(24, rank=rank, world=world) for rank in range(world)]
    for whole, *parts in zip(one, *ranks, strict=True):
        for key in ("pixel_values", "labels"):
            assert torch.equal(whole[key], torch.cat([part[key] for part in parts]))


def test_batches_of_any_size_have_the_same_samples() -> None:
    # 6 and 14 too: no multiple of the width of a vector register, where functions round otherwise.
    large = joined(train(64))
    for size in (6, 8, 14):
        small = joined(train(size))
        assert torch.equal(small[: len(large)], large)


def test_start_at_skips_batches_in_one_pass() -> None:
    made = train(128)
    made.set_epoch(3)
    whole = list(made)
    made.start_at(4)
    rest = list(made)
    assert len(rest) == len(whole) - 4
    for expected, got in zip(whole[4:], rest, strict=True):
        assert torch.equal(expected["pixel_values"], got["pixel_values"])
        assert torch.equal(expected["labels"], got["labels"])
    assert len(list(made)) == len(whole) == len(made)
    with pytest.raises(ValueError, match=r"start_at\(99\); expected 0 to 10"):
        made.start_at(99)


def test_set_epoch_decides_the_batches() -> None:
    made = train(256)
    first, again = joined(made), joined(made)
    made.set_epoch(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, joined(made))


def test_batches_do_not_change_the_global_random_state(class_folders: Callable[..., Path]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(train(256))
    data = load_data(class_folders(), resident_limit_gb=0)
    list(make_batches(data.test, 4, mean=data.mean, std=data.std, num_classes=2, workers=0))
    assert torch.equal(torch.rand(3), expected)


def test_batches_refuse_wrong_channels_and_prefetch_without_cuda() -> None:
    with pytest.raises(ValueError, match="mean has 1 and std 3 numbers; the images have 3 channels"):
        batches(8, mean=[0.5])
    with pytest.raises(ValueError, match="prefetch=True needs a CUDA device"):
        batches(8, prefetch=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_stream_batches_equal_device_batches(class_folders: Callable[..., Path], workers: int) -> None:
    folder = class_folders()
    resident, stream = load_data(folder), load_data(folder, resident_limit_gb=0)
    made: list[Batches] = [
        make_batches(
            data.train,
            4,
            augmentation=ALL_ON,
            mean=resident.mean,
            std=resident.std,
            num_classes=2,
            shuffle=True,
            workers=workers,
        )
        for data in (resident, stream)
    ]
    assert isinstance(made[0], DeviceBatches)
    assert isinstance(made[1], StreamBatches)
    for each in made:
        each.set_epoch(2)
        each.start_at(1)
    for held, lazy in zip(*made, strict=True):
        assert torch.equal(held["pixel_values"], lazy["pixel_values"])
        assert torch.equal(held["labels"], lazy["labels"])


def test_stream_batches_of_parquet_have_every_sample_once(parquet_folder: Callable[..., Path]) -> None:
    data = load_data(parquet_folder([0, 1, 2] * 20), resident_limit_gb=0, validation=0.1)
    made = make_batches(
        data.train, 8, mean=data.mean, std=data.std, num_classes=3, shuffle=True, workers=0, rank=1, world=3
    )
    assert sum(len(batch["labels"]) for batch in made) == len(data.train) // 3


def test_last_batch_smaller_than_the_world_is_empty_for_some_ranks() -> None:
    images = DIGITS.train.subset(torch.arange(9))
    sizes = [[len(b["labels"]) for b in batches(2, images=images, rank=r, world=4)] for r in range(4)]
    assert sizes == [[2, 0], [2, 0], [2, 0], [2, 1]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_prefetch_gives_the_same_batches_on_the_gpu() -> None:
    ahead, plain = train(64, device="cuda"), train(64, device="cuda", prefetch=False)
    for a, b in zip(ahead, plain, strict=True):
        assert torch.equal(a["pixel_values"], b["pixel_values"])
        assert torch.equal(a["labels"], b["labels"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_on_the_gpu_equal_those_on_the_cpu() -> None:
    gpu, cpu = train(64, device="cuda"), train(64)
    for a, b in zip(gpu, cpu, strict=True):
        torch.testing.assert_close(a["labels"].cpu(), b["labels"], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(a["pixel_values"].cpu(), b["pixel_values"], atol=2e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_never_synchronize_with_the_gpu() -> None:
    made = train(64, device="cuda")
    list(made)  # tables are made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device="cuda").item()  # waiting is an error in this block
        assert len(list(made)) == len(made) > 1
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Streams:
    """Streams that only write down, in their order, what is asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def stream(self, name: str) -> MagicMock:
        def note(word: str) -> Callable[..., str]:
            return lambda *given: self.log.append(f"{name} {word} {given[0] if given else ''}".strip()) or "event"

        named = MagicMock(wait_stream=note("waits for"), wait_event=note("waits for"), record_event=note("records"))
        named.__str__.return_value = name
        return named


def test_closing_prefetched_waits_for_the_batch_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    main, side = streams.stream("main"), streams.stream("side")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())

    def make(number: int) -> dict[str, Any]:
        streams.log.append(f"make {number}")
        return {"pixel_values": MagicMock()}

    made = prefetched(make, range(5), torch.device("cuda"))
    next(made)
    made.close()
    assert streams.log == [
        *("side waits for main", "make 0", "side records", "make 1", "side records"),
        *("main waits for event", "main waits for side"),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_leaving_an_epoch_early_on_the_gpu_corrupts_no_memory() -> None:
    made = train(64, device="cuda")
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        epoch = iter(made)
        next(epoch)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                busy @ busy  # the next batch has to wait
        del epoch
        junk = [torch.full((len(DIGITS.train),), 2**40, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()  # an index out of bounds would be an error here
    assert len(junk) == 8
