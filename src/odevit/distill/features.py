"""(h_l, logits) of every image, computed once: a frozen teacher's answers for images that do not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from odevit.data.batches import Batches
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.tokens import Logits, Pixels, Tokens
from odevit.version import __version__

INDEX, STATE, LOGITS = "index.json", "state-{}.npy", "logits.npy"
DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class CachedFeatures:
    """Features of some images: `states` by number of the layer, 0 being the embedded image, and `logits`."""

    states: Mapping[int, Tokens]
    logits: Logits | None


class TeacherCache:
    """index -> (h_l, logits): reads what `cache_features` wrote, one array [image, token, dim] per layer.

    With a `teacher`, the cache is refused unless these are the weights that made it.
    """

    def __init__(self, folder: str | Path, teacher: Teacher | None = None) -> None:
        folder = Path(folder).expanduser()
        if not has_features(folder):
            raise ValueError(f"{folder} has no {INDEX}; expected a folder that cache_features(...) wrote to its end")
        self.index = _read_index(folder)
        if teacher is not None and not self.index["fingerprint"].startswith(f"{fingerprint(teacher)}-"):
            raise ValueError(
                f"the features in {folder} were made by another teacher (or by other weights of it); "
                "call cache_features with this one and another folder"
            )
        self.states = {layer: np.load(folder / STATE.format(layer), mmap_mode="r") for layer in self.index["layers"]}
        self.logits = np.load(folder / LOGITS, mmap_mode="r") if self.index["has_logits"] else None

    def __len__(self) -> int:
        return self.index["samples"]

    def __getitem__(self, indices: int | Sequence[int] | Tensor) -> CachedFeatures:
        """Features of the samples `indices`, in that order, in float32. A single index gives a batch of one."""
        wanted = torch.as_tensor(indices, dtype=torch.int64).flatten().numpy()
        if len(wanted) == 0 or wanted.min() < 0 or wanted.max() >= len(self):
            raise IndexError(f"samples {wanted.tolist()[:10]} were asked for; expected 0 to {len(self) - 1}")

        def rows(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[wanted].astype(np.float32))

        states = {layer: rows(array) for layer, array in self.states.items()}
        return CachedFeatures(states, None if self.logits is None else rows(self.logits))


def cache_features(
    teacher: Teacher,
    batches: Iterable[Any],
    folder: str | Path,
    *,
    keep: Sequence[int] | None = None,
    samples: int | None = None,
    dtype: str = "float16",
    limit_gb: float = 20.0,
) -> TeacherCache:
    """Write a teacher's states and logits of a fixed set of images, in their order, and return a reader.

    A folder that holds the features of the same teacher, images and layers already is left as it is: to look at all
    images is little beside what a teacher makes of them.

    Args:
        batches: tensors of pixels, tuples that begin with one, or mappings with "pixel_values"; not shuffled and not
            augmented, because features are looked up by the number of the image.
        folder: where to; one folder per teacher and set of images.
        keep: the layers whose states are written, 0 (the embedded image) to L; all of them unless given.
        samples: the number of images, when `batches` does not tell.
        dtype: `float16` or `float32`.
        limit_gb: the size in GB above which this refuses.
    """
    folder, last = Path(folder).expanduser(), teacher.num_layers
    layers = list(range(last + 1) if keep is None else keep)
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer <= last for layer in layers):
        raise ValueError(f"keep={layers}; expected different numbers from 0 (the embedded image) to {last}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    count = _count(batches, samples)

    def features(pixels: Pixels) -> dict[str, np.ndarray]:
        output = teacher(pixels)
        tensors = {STATE.format(layer): output.states[layer] for layer in layers}
        if output.logits is not None:
            tensors[LOGITS] = output.logits
        return {name: tensor.to("cpu", getattr(torch, dtype)).numpy() for name, tensor in tensors.items()}

    stream = map(_pixels, batches)
    first = next(stream, None)
    if first is None:
        raise ValueError(f"there were no images in the batches, expected {count:,}")
    example = features(first[:1])
    size = sum(row.nbytes for row in example.values()) * count / 1e9
    if size > limit_gb:
        raise ValueError(
            f"the features of {count:,} images take {size:.3g} GB, more than limit_gb={limit_gb:g}; keep fewer layers "
            f"than {len(layers)} (keep=...), {'' if dtype == 'float16' else 'dtype=float16, '}or raise limit_gb"
        )
    index: dict[str, Any] = {
        "fingerprint": f"{fingerprint(teacher)}-{count}",
        "layers": layers,
        "samples": count,
        "has_logits": LOGITS in example,
        "dtype": dtype,
    }
    if has_features(folder):
        present = _read_index(folder)
        if present == index | {"images": _digest(chain([first], stream))}:
            return TeacherCache(folder)
        raise ValueError(
            f"{folder} holds features of another teacher, other images or other layers ({present['samples']:,} images, "
            f"layers {present['layers']}, {present['dtype']}); choose another folder, or delete it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written, seen = 0, hashlib.blake2b(digest_size=8)
    # Appended, not mapped: a full disk is then an error, and not a signal that kills the process.
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in example}
        for name, row in example.items():
            header = {"descr": row.dtype.str, "fortran_order": False, "shape": (count, *row.shape[1:])}
            np.lib.format.write_array_header_1_0(files[name], header)
        for pixels in chain([first], stream):
            for name, rows in features(pixels).items():
                files[name].write(rows.tobytes())
            written += len(pixels)
            _note(pixels, seen)
    if written != count:
        raise ValueError(f"there were {written:,} images in the batches, expected {count:,}; correct samples=")
    # Written last: a folder without an index was interrupted.
    content = json.dumps({**index, "images": seen.hexdigest(), "odevit_version": __version__}, indent=2, sort_keys=True)
    (folder / INDEX).write_text(content + "\n")
    return TeacherCache(folder)


def has_features(folder: str | Path) -> bool:
    """Whether features were written there, to their end."""
    return (Path(folder).expanduser() / INDEX).is_file()


def fingerprint(teacher: Teacher) -> str:
    """A short name for the teacher's weights: other weights, another name."""
    state = teacher.model.state_dict()
    return _digest(state[name] for name in sorted(state))


def _read_index(folder: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((folder / INDEX).read_text())
    version = index.pop("odevit_version", "of old")
    if "ends" in index:  # of the shards that were written before there was one array per layer
        raise ValueError(
            f"the features in {folder} are in the format of odevit {version}; delete them to make them anew"
        )
    return index


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        _note(tensor, digest)
    return digest.hexdigest()


def _note(tensor: Tensor, digest: Any) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    # numpy knows no bfloat16; bytes are bytes.
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _count(batches: Iterable[Any], samples: int | None) -> int:
    """The number of images; batches that are known to be shuffled or augmented are refused."""
    if isinstance(batches, Batches):
        problems = []
        if batches.augmentation is not None:
            problems.append("they are augmented, so the features would belong to no image; pass augmentation=None")
        if batches.sampler.shuffle or batches.sampler.repeats != 1:
            problems.append("they are shuffled or repeated; pass shuffle=False and no repeats")
        if batches.sampler.world != 1 or batches.sampler.drop_last:
            problems.append("they are a part of the images; pass world=1 and drop_last=False")
        if problems:
            raise ConfigError("the batches to cache", problems)
        return batches.sampler.samples
    if samples is None:
        if not hasattr(batches, "dataset"):
            raise ValueError(f"a {type(batches).__name__} does not say how many images it holds; pass samples=N")
        samples = len(batches.dataset)
    if samples < 1:
        raise ValueError(f"samples={samples}; expected at least 1")
    return samples


def _pixels(batch: Any) -> Pixels:
    if isinstance(batch, Mapping):
        return batch["pixel_values"]
    return batch if isinstance(batch, Tensor) else batch[0]
