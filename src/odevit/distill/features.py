"""(h_l, logits) of every image, computed once: a frozen teacher's answers for images that do not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from odevit.data import Batches
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError
from odevit.tokens import Logits, Pixels, Tokens
from odevit.version import __version__

INDEX, SHARD, STATE, LOGITS = "index.json", "features-{:05d}.safetensors", "state.{}", "logits"
DTYPES = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class CachedFeatures:
    """Features of some images: `states` by number of the layer, 0 being the embedded image, and `logits`."""

    states: Mapping[int, Tokens]
    logits: Logits | None


@dataclass(frozen=True)
class CacheIndex:
    """What a folder of features holds.

    Args:
        fingerprint: of the teacher's weights, the number of images, and the first batch of them.
        layers: the layers that were written.
        samples: the number of images.
        ends: for each shard, the number of images up to its end.
        has_logits: whether the teacher has a head.
        dtype: of the numbers on disk.
    """

    fingerprint: str
    layers: tuple[int, ...]
    samples: int
    ends: tuple[int, ...]
    has_logits: bool
    dtype: str

    @classmethod
    def read(cls, folder: Path) -> CacheIndex:
        """The index of a folder."""
        content = json.loads((folder / INDEX).read_text())
        content.pop("odevit_version", None)
        return cls(**{**content, "layers": tuple(content["layers"]), "ends": tuple(content["ends"])})


class TeacherCache:
    """index -> (h_l, logits): reads what `cache_features` wrote, one row at a time or many.

    Args:
        folder: of the features.
        teacher: when given, the cache is refused unless these are the weights that made it.
    """

    def __init__(self, folder: str | Path, teacher: Teacher | None = None) -> None:
        self.folder = Path(folder)
        if not (self.folder / INDEX).is_file():
            raise ValueError(f"{folder} has no {INDEX}; expected a folder that cache_features(...) wrote to its end")
        self.index = CacheIndex.read(self.folder)
        if teacher is not None and not self.index.fingerprint.startswith(f"{fingerprint(teacher)}-"):
            raise ValueError(
                f"the features in {folder} were made by another teacher (or by other weights of it); "
                "call cache_features with this one and another folder"
            )

    def __len__(self) -> int:
        return self.index.samples

    def __getitem__(self, indices: int | Sequence[int] | Tensor) -> CachedFeatures:
        """Features of the samples `indices`, in that order, in float32. A single index gives a batch of one."""
        wanted = torch.as_tensor([indices] if isinstance(indices, int) else indices, dtype=torch.int64).flatten()
        if len(wanted) == 0 or int(wanted.min()) < 0 or int(wanted.max()) >= len(self):
            raise IndexError(f"samples {wanted.tolist()[:10]} were asked for; expected 0 to {len(self) - 1}")
        shards = torch.bucketize(wanted, torch.tensor(self.index.ends), right=True)
        names = [STATE.format(layer) for layer in self.index.layers] + [LOGITS] * self.index.has_logits
        rows: dict[str, list[Tensor]] = {name: [torch.empty(0)] * len(wanted) for name in names}
        for shard in shards.unique().tolist():
            first = 0 if shard == 0 else self.index.ends[shard - 1]
            with safe_open(str(self.folder / SHARD.format(shard)), framework="pt") as file:
                for name in names:
                    slices = file.get_slice(name)
                    for position in (shards == shard).nonzero().flatten().tolist():
                        rows[name][position] = slices[int(wanted[position]) - first]
        features = {name: torch.stack(values).float() for name, values in rows.items()}
        states = {layer: features[STATE.format(layer)] for layer in self.index.layers}
        return CachedFeatures(states, features.get(LOGITS))


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

    A folder that holds the features of the same teacher, images and layers already is left as it is.

    Args:
        teacher: of the features.
        batches: tensors of pixels, tuples that begin with one, or mappings with "pixel_values"; not shuffled and not
            augmented, because features are looked up by the number of the image.
        folder: where to; one folder per teacher and set of images.
        keep: the layers whose states are written, 0 (the embedded image) to L; all of them unless given.
        samples: the number of images, when `batches` does not tell.
        dtype: `float16` or `float32`.
        limit_gb: the size in GB above which this refuses.
    """
    last = teacher.num_layers
    layers = tuple(range(last + 1)) if keep is None else tuple(keep)
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer <= last for layer in layers):
        raise ValueError(f"keep={list(layers)}; expected different numbers from 0 (the embedded image) to {last}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    count = _count(batches, samples)

    def features(pixels: Pixels) -> dict[str, Tensor]:
        output = teacher(pixels)
        tensors = {STATE.format(layer): output.states[layer] for layer in layers}
        if output.logits is not None:
            tensors[LOGITS] = output.logits
        return {name: tensor.to("cpu", DTYPES[dtype]).contiguous() for name, tensor in tensors.items()}

    stream = map(_pixels, batches)
    first = next(stream)
    size = sum(tensor.nbytes for tensor in features(first[:1]).values()) * count / 1e9
    if size > limit_gb:
        raise ValueError(
            f"the features of {count:,} images take {size:.3g} GB, more than limit_gb={limit_gb:g}; keep fewer layers "
            f"than {len(layers)} (keep=...), {'' if dtype == 'float16' else 'dtype=float16, '}or raise limit_gb"
        )
    key, folder = f"{fingerprint(teacher)}-{count}-{_digest([first])}", Path(folder)
    if (folder / INDEX).is_file():
        present = CacheIndex.read(folder)
        if (present.fingerprint, present.layers, present.dtype) == (key, layers, dtype):
            return TeacherCache(folder)
        raise ValueError(
            f"{folder} holds features of another teacher, other images or other layers ({present.samples:,} images, "
            f"layers {list(present.layers)}, {present.dtype}); choose another folder, or delete it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    ends: list[int] = []
    for number, pixels in enumerate(chain([first], stream)):
        save_file(features(pixels), folder / SHARD.format(number))
        ends.append(len(pixels) + (ends[-1] if ends else 0))
    if ends[-1] != count:
        raise ValueError(f"there were {ends[-1]:,} images in the batches, expected {count:,}; correct samples=")
    index = CacheIndex(key, layers, count, tuple(ends), teacher.anatomy.labels is not None, dtype)
    # Written last: a folder without an index was interrupted.
    content = {**asdict(index), "odevit_version": __version__}
    (folder / INDEX).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return TeacherCache(folder)


def fingerprint(teacher: Teacher) -> str:
    """A short name for the teacher's weights: other weights, another name."""
    state = teacher.model.state_dict()
    return _digest(state[name] for name in sorted(state))


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        # numpy knows no bfloat16; bytes are bytes.
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _count(batches: Iterable[Any], samples: int | None) -> int:
    """The number of images; batches that are known to be shuffled or augmented are refused."""
    if isinstance(batches, Batches):
        problems = []
        if batches.augmentation is not None:
            problems.append("they are augmented, so the features would belong to no image; pass augmentation=None")
        if batches.plan.shuffle or batches.plan.repeats != 1:
            problems.append("they are shuffled or repeated; pass shuffle=False and no repeats")
        if batches.plan.world != 1 or batches.plan.drop_last:
            problems.append("they are a part of the images; pass world=1 and drop_last=False")
        if problems:
            raise ConfigError("the batches to cache", problems)
        return batches.plan.samples
    if samples is None:
        data: Any = getattr(batches, "dataset", None)
        if data is None:
            raise ValueError(f"a {type(batches).__name__} does not say how many images it holds; pass samples=N")
        samples = len(data)
    if samples < 1:
        raise ValueError(f"samples={samples}; expected at least 1")
    return samples


def _pixels(batch: Any) -> Pixels:
    if isinstance(batch, Mapping):
        return batch["pixel_values"]
    return batch if isinstance(batch, Tensor) else batch[0]
