"""load_data: a name, a folder or a hub id -> DataSet. The one way in.

find the source -> name its parts -> check labels -> decode (or stream) -> hold out validation -> measure

With `cache`, decoded pixels and measurements are kept in cache/<name>-<fingerprint>.safetensors. The fingerprint is a
hash of everything the tensors depend on: files with sizes and times, columns, image size. Nothing is pickled.
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

_LOOKED_AT = 256
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
    """The data set `data`, decoded, split and measured.

    Args:
        data: "digits"; a folder in hub layout (parquet files); a folder of class folders; or a hub id.
        image_size: side to resize to; None keeps the size that all images share.
        image_column: column of the images; None takes the first that holds images.
        label_column: column of the labels; None takes "label", "labels", "fine_label", ...
        validation: fraction of each class of the training part held out to choose models by.
        share: fraction of each class of what is left that is learned from; statistics are those of all.
        split_seed: decides which samples these are.
        skip_unreadable: go on without images that cannot be read, with a warning.
        resident_limit_gb: sets larger than this when decoded are streamed; 0 streams all.
        cache: folder that keeps decoded arrays for the next time; None keeps none.
        processor: the image processor of the model that is to see them; our own for `image_size` unless given.
        unlabelled: folders of more images to train on, which nothing is measured on; see `find_pictures`.
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
    parts = choose_splits(source.parts, source.name)
    present = parts["train"].labels.unique().tolist()
    if len(present) < 2:
        only = classes[present[0]]
        raise ValueError(f"the training part of {source.name} has only one class ({only!r}); expected two or more.")
    facts = source.facts
    if unlabelled:
        more = find_unlabelled(unlabelled, source.files)
        parts, facts = {**parts, **more.parts}, (*facts, *more.facts)
    loaded = _load(source.name, facts, parts, processor, skip_unreadable, resident_limit_gb, cache)
    train = loaded["train"]
    held_out = loaded.get("validation")
    # A validation part that came with the data, beside a test part, is used as it is.
    if held_out is None:
        kept, held = stratified_split(train.labels, validation, split_seed)
        train, held_out = train.subset(kept), train.subset(held)
    # Measurements are cached too: those of a stream cost thousands of decodings.
    streamed = isinstance(train, ImageStream)  # of which some are measured
    settings = [source.facts, _facts(processor), skip_unreadable, validation, split_seed, streamed]
    file = _cache_file(cache, f"{source.name}-statistics", [settings, len(train)])
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
    """The names of the classes, or their numbers; labels that are no classes are refused."""
    classes = source.classes or _numbered(source)
    _check_labels(source.parts, classes, source.name)
    return classes


def _numbered(source: Source) -> tuple[str, ...]:
    """Names for classes that have none: their numbers, which count the classes and can be no more than the images."""
    largest = max((int(records.labels.max()) for records in source.parts.values() if len(records)), default=0)
    images = sum(map(len, source.parts.values()))
    if largest >= images:
        raise ValueError(
            f"the labels of {source.name} go up to {largest:,}, but it has {images:,} images; expected the numbers of "
            "classes, 0, 1, 2, ...: number the classes anew, or choose another column with label_column="
        )
    return tuple(str(label) for label in range(largest + 1))


def _check_labels(parts: Mapping[str, Records], classes: tuple[str, ...], where: str) -> None:
    for part, records in parts.items():
        if part.lower().startswith("test") and bool((records.labels == -1).all()):
            continue  # not labelled, and not used
        wrong = ((records.labels < 0) | (records.labels >= len(classes))).nonzero().flatten().tolist()
        if wrong:
            raise ValueError(
                f"{len(wrong)} labels of the {part} part of {where} are outside 0..{len(classes) - 1}, the first"
                f" is {int(records.labels[wrong[0]])} ({records.name(wrong[0])}). Correct them or remove those rows."
            )


def _load(
    name: str,
    facts: tuple[object, ...],
    parts: Mapping[str, Records],
    processor: BaseImageProcessor | None,
    skip_unreadable: bool,
    resident_limit_gb: float,
    cache: str | Path | None,
) -> dict[str, Images] | dict[str, ImageStream]:
    folder = None if resident_limit_gb == 0 else cache
    # Not in the fingerprint: the validation split, which is carved out later.
    file = _cache_file(folder, name, [facts, _facts(processor), skip_unreadable, sorted(parts)])
    stored = _read_cache(file)
    if stored is not None:
        return {part: Images(stored[f"{part}.pixels"], stored[f"{part}.labels"]) for part in parts}
    labelled = [records for part, records in parts.items() if part != UNLABELLED]
    size = infer_image_size(labelled) if processor is None else shape_of(processor)[1]
    decoder = Decoder(size, resize=processor is not None or UNLABELLED in parts, processor=processor)
    decoded_bytes = sum(len(records) for records in parts.values()) * decoder.channels * size * size
    if decoded_bytes > resident_limit_gb * 2**30:
        return {part: ImageStream(records, decoder, skip_unreadable) for part, records in parts.items()}
    decoded, complaints = {}, []
    for part, records in parts.items():
        decoded[part], lines = decode_records(records, decoder, title=f"decoding {name}, {part}")
        complaints += lines
    if complaints:  # not cached: skipped images are reported again at every load
        report_unreadable(complaints, decoded, skip_unreadable)
        if len(decoded["train"].labels.unique()) < 2:
            raise ValueError("only one class is left in the training part; check the files.")
    else:
        pixels = {f"{part}.pixels": images.pixels for part, images in decoded.items()}
        _write_cache(file, pixels | {f"{part}.labels": images.labels for part, images in decoded.items()})
    return decoded


def _facts(processor: BaseImageProcessor | None) -> object:
    return None if processor is None else processor_fields(processor)


def report_unreadable(complaints: list[str], decoded: Mapping[str, Images], skip_unreadable: bool) -> None:
    """Raise what cannot be read, or warn of it where it is to be skipped and something is left."""
    count = "1 image" if len(complaints) == 1 else f"{len(complaints)} images"
    more = [f"... and {len(complaints) - 10} more"] if len(complaints) > 10 else []
    summary = "\n  ".join([f"{count} cannot be read:", *(f"- {line}" for line in complaints[:10]), *more])
    if not skip_unreadable:
        raise ValueError(f"{summary}\nReplace them, or set skip_unreadable=True to go on without them.")
    warnings.warn(f"skipped: {summary}", OdeVitWarning, stacklevel=4)
    for part, images in decoded.items():
        if len(images) == 0:
            raise ValueError(f"no image of the {part} part can be read; check the files.")


def _cache_file(folder: str | Path | None, name: str, facts: object) -> Path | None:
    """The file that holds, or will hold, what is made from `facts` (anything JSON can write); None without a cache."""
    if folder is None:
        return None
    fingerprint = hashlib.sha256(json.dumps([_CACHE_LAYOUT, facts], sort_keys=True).encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return Path(folder).expanduser() / f"{readable}-{fingerprint}.safetensors"


def _read_cache(file: Path | None) -> dict[str, Tensor] | None:
    """The tensors stored in `file`, or None when it is missing or broken (then they are made again)."""
    if file is None or not file.exists():
        return None
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        logger.warning("the cached data set %s cannot be read (%s) and is made again", file, error)
        return None


def _write_cache(file: Path | None, tensors: Mapping[str, Tensor]) -> None:
    """Store `tensors`; under another name first, so that an interruption leaves no half-written file."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished)
    unfinished.replace(file)


@dataclass(frozen=True)
class DataSummary:
    """What a recipe depends on: images to train on (those held out are not), classes, typical size, colour."""

    name: str
    images: int
    classes: int
    side: int
    """The median of the shortest sides."""
    colour: bool


def inspect_data(data: str, *, validation: float = 0.1, split_seed: int = 0, **columns: str | None) -> DataSummary:
    """Look at a data set as `load_data` would read it, at some of its images."""
    source = find_source(data, **columns)
    classes = class_names_of(source)
    parts = choose_splits(source.parts, source.name)
    train = parts["train"]
    held_out = 0 if "validation" in parts else len(stratified_split(train.labels, validation, split_seed)[1])
    seen = [picture for picture in map(_size_and_colour, _some(train)) if picture is not None]
    if not seen:
        raise ValueError(f"none of the images of {data} that were looked at can be read; check the files.")
    side = median_low(side for side, _ in seen)
    return DataSummary(source.name, len(train) - held_out, len(classes), side, any(colour for _, colour in seen))


def _some(records: Records) -> Iterable[Encoded | None]:
    for index in records.sample_indices(_LOOKED_AT):
        try:
            yield records.read(index)
        except UNREADABLE:
            yield None  # named and counted when everything is decoded


def _size_and_colour(encoded: Encoded | None) -> tuple[int, bool] | None:
    if isinstance(encoded, np.ndarray):
        return min(encoded.shape[:2]), encoded.ndim == 3
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded or "") as picture:
            return min(picture.size), picture.mode not in ("1", "L", "LA", "La", "I", "I;16", "I;16B", "F")
    except UNREADABLE:
        return None
