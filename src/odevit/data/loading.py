"""load_data: a name, a folder or a hub id -> DataSet.

find the source -> choose splits -> check labels -> decode or stream -> hold out validation -> measure mean and std

With `cache`, decoded pixels and measurements are stored in cache/<name>-<fingerprint>.safetensors. The fingerprint is a
hash of everything the tensors depend on: files with sizes and times, columns, image size.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median_low

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.image_processing_utils import BaseImageProcessor

from odevit.data.decode import Decoder, decode_records, infer_image_size
from odevit.data.images import DataSet, Images, ImageStream, channel_statistics
from odevit.data.records import UNREADABLE, Encoded, Records, Source
from odevit.data.source import find_source
from odevit.data.splits import choose_splits, stratified_split
from odevit.data.unlabelled import UNLABELLED, find_unlabelled
from odevit.errors import POSITIVE_FRACTION, ConfigError, Expected, OdeVitWarning, integer, real, writable
from odevit.hf.processor import processor_fields, shape_of, square_processor

logger = logging.getLogger(__name__)

_SAMPLE = 256
_CACHE_LAYOUT = 2  # raise when the meaning of the stored tensors changes


def load_data(
    data: str | Path = "digits",
    *,
    image_size: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    validation: float = 0.1,
    share: float = 1.0,
    split_seed: int = 0,
    skip_unreadable: bool = False,
    resident_limit_gb: float = 4.0,
    cache: str | Path | None = None,
    processor: BaseImageProcessor | None = None,
    unlabelled: Sequence[str | Path] = (),
) -> DataSet:
    """Load a data set: decode it, split it, and measure its mean and standard deviation.

    Args:
        data: "digits"; a folder in hub layout (parquet files); a folder of class folders; or a hub id.
        image_size: side to resize to; None keeps the size that all images share.
        image_column: column of the images; None takes the first that holds images.
        label_column: column of the labels; None takes "label", "labels", "fine_label", ...
        validation: fraction of each class of the training split that is held out to choose models by.
        share: fraction of each class of the rest that is trained on; mean and std are those of the whole rest.
        split_seed: decides which samples these are.
        skip_unreadable: leave out images that cannot be read, with a warning.
        resident_limit_gb: data sets that are larger than this when decoded are streamed; 0 streams all.
        cache: folder that stores decoded arrays for the next time; None stores none.
        processor: the image processor of the model; our own for `image_size` unless given.
        unlabelled: folders of more images to train on; see `find_unlabelled`.
    """
    problems = [
        *integer(1, optional=True).problem("image_size", image_size),
        *real(minimum=0, below=1).problem("validation", validation),
        *POSITIVE_FRACTION.problem("share", share),
        *Expected("0 (stream everything) or more", lambda gb: gb >= 0).problem("resident_limit_gb", resident_limit_gb),
        *writable("cache", cache, folder=True),
    ]
    if processor is not None and image_size is not None:
        problems.append(f"image_size={image_size} and processor=; expected one of them")
    if problems:
        raise ConfigError("load_data", problems)
    if image_size is not None:
        processor = square_processor(image_size)
    source = find_source(data, image_column=image_column, label_column=label_column)
    classes = class_names_of(source)
    splits = choose_splits(source.splits, source.name)
    present = splits["train"].labels.unique().tolist()
    if len(present) < 2:
        only = classes[present[0]]
        raise ValueError(f"the training split of {source.name} has only one class ({only!r}); expected two or more.")
    fingerprint = source.fingerprint
    if unlabelled:
        more = find_unlabelled(unlabelled, source.files)
        splits, fingerprint = {**splits, **more.splits}, (*fingerprint, *more.fingerprint)
    loaded = _load(source.name, fingerprint, splits, processor, skip_unreadable, resident_limit_gb, cache)
    train = loaded["train"]
    held_out = loaded.get("validation")
    if held_out is None:  # the source has no validation split
        kept, held = stratified_split(train.labels, validation, split_seed)
        train, held_out = train.subset(kept), train.subset(held)
    # Statistics are cached too: those of a stream, measured on a sample, take thousands of decodings.
    streamed = isinstance(train, ImageStream)
    pixels = [source.fingerprint, _processor_fingerprint(processor), skip_unreadable]
    file = _cache_file(cache, f"{source.name}-statistics", [[*pixels, validation, split_seed, streamed], len(train)])
    measured = _read_cache(file)
    if measured is None:
        mean, std = channel_statistics(train)
        measured = {"mean": torch.tensor(mean, dtype=torch.float64), "std": torch.tensor(std, dtype=torch.float64)}
        _write_cache(file, measured)
    mean, std = (tuple(measured[name].tolist()) for name in ("mean", "std"))
    if share < 1:
        train = train.subset(stratified_split(train.labels, share, split_seed)[1])
    if unlabelled:
        train = train.concatenate(loaded[UNLABELLED])  # type: ignore[arg-type]  # both in memory, or both streams
    return DataSet(source.name, train, held_out, loaded["test"], classes, mean, std, train.size[0], train.channels)


def class_names_of(source: Source) -> tuple[str, ...]:
    """The names of the classes, or their numbers as text; raises an error for labels that are no class numbers."""
    images = sum(map(len, source.splits.values()))
    largest = max((int(records.labels.max()) for records in source.splits.values() if len(records)), default=0)
    if not source.classes and largest >= images:
        raise ValueError(
            f"the labels of {source.name} go up to {largest:,}, but it has {images:,} images; expected the numbers of "
            "classes, 0, 1, 2, ...: number the classes anew, or choose another column with label_column="
        )
    classes = source.classes or tuple(map(str, range(largest + 1)))
    for split, records in source.splits.items():
        if split.lower().startswith("test") and bool((records.labels == -1).all()):
            continue  # without labels; not used
        wrong = ((records.labels < 0) | (records.labels >= len(classes))).nonzero().flatten().tolist()
        if wrong:
            raise ValueError(
                f"{len(wrong)} labels of the {split} split of {source.name} are outside 0..{len(classes) - 1}, the "
                f"first is {int(records.labels[wrong[0]])} ({records.name(wrong[0])}). Correct or remove those rows."
            )
    return classes


def _load(
    name: str,
    fingerprint: tuple[object, ...],
    splits: Mapping[str, Records],
    processor: BaseImageProcessor | None,
    skip_unreadable: bool,
    resident_limit_gb: float,
    cache: str | Path | None,
) -> dict[str, Images] | dict[str, ImageStream]:
    folder = None if resident_limit_gb == 0 else cache
    # The validation fraction is not in the fingerprint: that split is made after decoding.
    file = _cache_file(folder, name, [fingerprint, _processor_fingerprint(processor), skip_unreadable, sorted(splits)])
    stored = _read_cache(file)
    if stored is not None:
        return {split: Images(stored[f"{split}.pixels"], stored[f"{split}.labels"]) for split in splits}
    labelled = [records for split, records in splits.items() if split != UNLABELLED]
    size = infer_image_size(labelled) if processor is None else shape_of(processor)[1]
    decoder = Decoder(size, resize=processor is not None or UNLABELLED in splits, processor=processor)
    decoded_bytes = sum(len(records) for records in splits.values()) * decoder.channels * size * size
    if decoded_bytes > resident_limit_gb * 2**30:
        return {split: ImageStream(records, decoder, skip_unreadable) for split, records in splits.items()}
    decoded, complaints = {}, []
    for split, records in splits.items():
        decoded[split], lines = decode_records(records, decoder, title=f"decoding {name}, {split}")
        complaints += lines
    if complaints:  # not cached: skipped images are reported again at every load
        report_unreadable(complaints, decoded, skip_unreadable)
        if len(decoded["train"].labels.unique()) < 2:
            raise ValueError("only one class is left in the training split; check the files.")
    else:
        pixels = {f"{split}.pixels": images.pixels for split, images in decoded.items()}
        _write_cache(file, pixels | {f"{split}.labels": images.labels for split, images in decoded.items()})
    return decoded


def _processor_fingerprint(processor: BaseImageProcessor | None) -> object:
    return None if processor is None else processor_fields(processor)


def report_unreadable(complaints: list[str], decoded: Mapping[str, Images], skip_unreadable: bool) -> None:
    """Raise an error that lists unreadable images; if they are to be skipped, warn, and raise if a split is empty."""
    count = "1 image" if len(complaints) == 1 else f"{len(complaints)} images"
    more = [f"... and {len(complaints) - 10} more"] if len(complaints) > 10 else []
    summary = "\n  ".join([f"{count} cannot be read:", *(f"- {line}" for line in complaints[:10]), *more])
    if not skip_unreadable:
        raise ValueError(f"{summary}\nReplace them, or set skip_unreadable=True to go on without them.")
    warnings.warn(f"skipped: {summary}", OdeVitWarning, stacklevel=4)
    for split, images in decoded.items():
        if len(images) == 0:
            raise ValueError(f"no image of the {split} split can be read; check the files.")


def _cache_file(folder: str | Path | None, name: str, fingerprint: object) -> Path | None:
    """The file for tensors with this fingerprint, any JSON value; None without a cache."""
    if folder is None:
        return None
    fingerprint = hashlib.sha256(json.dumps([_CACHE_LAYOUT, fingerprint], sort_keys=True).encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return Path(folder).expanduser() / f"{readable}-{fingerprint}.safetensors"


def _read_cache(file: Path | None) -> dict[str, Tensor] | None:
    """The tensors in `file`; None if it is missing or damaged."""
    if file is None or not file.exists():
        return None
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        logger.warning("the cached data set %s cannot be read (%s); decoding again", file, error)
        return None


def _write_cache(file: Path | None, tensors: Mapping[str, Tensor]) -> None:
    """Store tensors, under a temporary name first, so that an interruption leaves no partial file."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished)
    unfinished.replace(file)


@dataclass(frozen=True)
class DataSummary:
    """What automatic options depend on: number of training images (without validation) and classes, size, colour."""

    name: str
    images: int
    classes: int
    side: int
    """The median of the shortest sides."""
    colour: bool


def inspect_data(data: str, *, validation: float = 0.1, split_seed: int = 0, **columns: str | None) -> DataSummary:
    """Summarise a data set as `load_data` would read it, from the headers of some images."""
    source = find_source(data, **columns)
    classes = class_names_of(source)
    splits = choose_splits(source.splits, source.name)
    train = splits["train"]
    held_out = 0 if "validation" in splits else len(stratified_split(train.labels, validation, split_seed)[1])
    seen = [picture for picture in map(_size_and_colour, _some(train)) if picture is not None]
    if not seen:
        raise ValueError(f"none of the images of {data} that were tried can be read; check the files.")
    side = median_low(side for side, _ in seen)
    return DataSummary(source.name, len(train) - held_out, len(classes), side, any(colour for _, colour in seen))


def _some(records: Records) -> Iterable[Encoded | None]:
    for index in records.sample_indices(_SAMPLE):
        try:
            yield records.read(index)
        except UNREADABLE:
            yield None  # load_data reports it


def _size_and_colour(encoded: Encoded | None) -> tuple[int, bool] | None:
    if isinstance(encoded, np.ndarray):
        return min(encoded.shape[:2]), encoded.ndim == 3
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded or "") as picture:
            return min(picture.size), picture.mode not in ("1", "L", "LA", "La", "I", "I;16", "I;16B", "F")
    except UNREADABLE:
        return None
