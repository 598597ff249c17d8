"""load_data: a name, a folder or a hub id -> DataSet. The one way in.

find the source -> name its parts -> check labels -> decode (or stream) -> hold out validation -> measure
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from odevit.data.cache import cache_file, read_cache, write_cache
from odevit.data.decode import Decoder, common_size, decode_records
from odevit.data.images import DataSet, Images, channel_statistics
from odevit.data.parts import choose_parts, stratified_split
from odevit.data.records import Records, Source
from odevit.data.source import find_source
from odevit.data.stream import ImageStream
from odevit.errors import ConfigError, OdeVitWarning


def load_data(
    data: str | Path = "digits",
    *,
    image_size: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    validation: float = 0.1,
    split_seed: int = 0,
    skip_unreadable: bool = False,
    resident_limit_gb: float = 4.0,
    cache: str | Path | None = None,
) -> DataSet:
    """The data set `data`, decoded, split and measured.

    Args:
        data: "digits"; a folder in hub layout (parquet files); a folder of class folders; or a hub id.
        image_size: side to resize to; None keeps the size that all images share.
        image_column: column of the images; None takes the first that holds images.
        label_column: column of the labels; None takes "label", "labels", "fine_label", ...
        validation: fraction of each class of the training part held out to choose models by.
        split_seed: decides which samples are held out.
        skip_unreadable: go on without images that cannot be read, with a warning.
        resident_limit_gb: sets larger than this when decoded are streamed; 0 streams all.
        cache: folder that keeps decoded arrays for the next time; None keeps none.

    Raises:
        ValueError: what is wrong with the data, and what to change.
    """
    _check_arguments(image_size, validation, resident_limit_gb)
    source = find_source(data, image_column=image_column, label_column=label_column)
    parts = choose_parts(source.parts, source.name)
    _check_labels(parts, source)
    loaded = _load(source, parts, image_size, skip_unreadable, resident_limit_gb, cache)
    train = loaded["train"]
    kept, held = stratified_split(train.labels, validation, split_seed)
    # A validation part that came with the data, beside a test part, is used as it is.
    chosen_by = loaded.get("validation")
    if chosen_by is None:
        train, chosen_by = train.subset(kept), train.subset(held)
    settings = [source.facts, image_size, skip_unreadable, validation, split_seed, resident_limit_gb == 0]
    mean, std = _measure(train, source.name, settings, cache)
    return DataSet(
        source.name, train, chosen_by, loaded["test"], source.classes, mean, std, train.size[0], train.channels
    )


def _check_arguments(image_size: int | None, validation: float, resident_limit_gb: float) -> None:
    problems = []
    if image_size is not None and image_size < 1:
        problems.append(f"image_size={image_size}; expected a number of pixels, 1 or more, or None")
    if not 0 <= validation < 1:
        problems.append(f"validation={validation}; expected a fraction from 0 up to, not including, 1")
    if resident_limit_gb < 0:
        problems.append(f"resident_limit_gb={resident_limit_gb}; expected 0 (stream everything) or more")
    if problems:
        raise ConfigError("load_data", problems)


def _check_labels(parts: Mapping[str, Records], source: Source) -> None:
    known = len(source.classes)
    for part, records in parts.items():
        wrong = ((records.labels < 0) | (records.labels >= known)).nonzero().flatten()
        if len(wrong):
            first = int(wrong[0])
            raise ValueError(
                f"{len(wrong)} labels of the {part} part of {source.name} are outside 0..{known - 1}, the first"
                f" is {int(records.labels[first])} ({records.name(first)}). Correct them or remove those rows."
            )
    present = parts["train"].labels.unique()
    if len(present) < 2:
        only = source.classes[int(present[0])]
        raise ValueError(f"the training part of {source.name} has only one class ({only!r}); expected two or more.")


def _load(
    source: Source,
    parts: Mapping[str, Records],
    image_size: int | None,
    skip_unreadable: bool,
    resident_limit_gb: float,
    cache: str | Path | None,
) -> dict[str, Images] | dict[str, ImageStream]:
    file = None
    if cache is not None and resident_limit_gb > 0:
        file = cache_file(cache, source.name, [source.facts, image_size, skip_unreadable, sorted(parts)])
        stored = read_cache(file)
        if stored is not None:
            return {part: Images(stored[f"{part}.pixels"], stored[f"{part}.labels"]) for part in parts}
    size = common_size(parts.values()) if image_size is None else image_size
    decoder = Decoder(size, resize=image_size is not None)
    decoded_bytes = sum(len(records) for records in parts.values()) * decoder.channels * size * size
    if decoded_bytes > resident_limit_gb * 2**30 or resident_limit_gb == 0:
        return {part: ImageStream(records, decoder, skip_unreadable=skip_unreadable) for part, records in parts.items()}
    decoded, complaints = {}, []
    for part, records in parts.items():
        decoded[part], lines = decode_records(records, decoder, title=f"decoding {source.name}, {part}")
        complaints += lines
    _report_unreadable(complaints, decoded, skip_unreadable)
    if file is not None and not complaints:  # skipped images are reported again at every load
        pixels = {f"{part}.pixels": images.pixels for part, images in decoded.items()}
        write_cache(file, pixels | {f"{part}.labels": images.labels for part, images in decoded.items()})
    return decoded


def _measure(
    train: Images | ImageStream, name: str, settings: object, cache: str | Path | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Pixel statistics of the training part; cached too, since those of a stream cost thousands of decodings."""
    if cache is None:
        return channel_statistics(train)
    file = cache_file(cache, f"{name}-statistics", [settings, len(train)])
    stored = read_cache(file)
    if stored is not None:
        return tuple(stored["mean"].tolist()), tuple(stored["std"].tolist())
    mean, std = channel_statistics(train)
    write_cache(file, {"mean": torch.tensor(mean, dtype=torch.float64), "std": torch.tensor(std, dtype=torch.float64)})
    return mean, std


def _report_unreadable(complaints: list[str], decoded: Mapping[str, Images], skip_unreadable: bool) -> None:
    if not complaints:
        return
    count = "1 image" if len(complaints) == 1 else f"{len(complaints)} images"
    more = [f"... and {len(complaints) - 10} more"] if len(complaints) > 10 else []
    summary = "\n  ".join([f"{count} cannot be read:", *(f"- {line}" for line in complaints[:10]), *more])
    if not skip_unreadable:
        raise ValueError(f"{summary}\nReplace them, or set skip_unreadable=True to go on without them.")
    warnings.warn(f"skipped: {summary}", OdeVitWarning, stacklevel=4)
    for part, images in decoded.items():
        if len(images) == 0:
            raise ValueError(f"no image of the {part} part can be read; check the files.")
    if len(torch.unique(decoded["train"].labels)) < 2:
        raise ValueError("only one class is left in the training part; check the files.")
