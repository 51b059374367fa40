"""MNIST, Fashion-MNIST and CIFAR-10, from the files they are published as or from npz archives of the same images.

Nothing pickled is ever loaded. Pixels are scaled by published constants, and a client's test records are drawn from the
official test images with labels that it has, or by the Dirichlet law that its training records were drawn by.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue
from .arrays import read
from .dirichlet import Law
from .download import CIFAR10, FASHION_MNIST, MNIST, Remote, cache, fetch
from .embedded import refuse_descriptions
from .federation import Client, Federation, Records, Task
from .folder import unreadable
from .partition import deal, generator, taken

if TYPE_CHECKING:
    from ..config import DataConfig

FOLDER = "PRIFEDSYNC_DATA"  # where data sets lie, if --data and data.path do not say
CLASSES = 10
IDX_IMAGES, IDX_LABELS = 0x803, 0x801  # unsigned bytes in three dimensions, and in one
NAMES = ("train_images", "train_labels", "test_images", "test_labels")
IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
BINARY = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
ROW = 1 + 3 * 32 * 32  # of CIFAR-10's binary version: a label, then red, green and blue

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ImageSet:
    """One published data set: its images' shape (channels first), how pixels are scaled, and the folders it may lie in."""

    title: str
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    archive: str
    folders: tuple[str, ...]
    published: Callable[[Path], Arrays | None]
    wanted: str
    remote: Remote


def load(config: DataConfig, seed: int) -> Federation:
    """The training images over clients by `data.partition`, each with test images of its own kind."""
    found, task = IMAGES[config.source], Task("classes", CLASSES)
    refuse_descriptions(config, task)
    arrays = _found(found, config)
    train, test = (_records(found, arrays, part) for part in ("train", "test"))
    dealt = deal(config, train.y.numpy(), seed)
    clients = []
    for name, rows in dealt.rows.items():
        mine, random = taken(train, rows), generator(seed, "test images", name)
        which = _tests(mine.y.numpy(), test.y.numpy(), config.test_records, dealt.laws.get(name), random)
        clients.append(Client(name, mine, taken(test, which)))
    return Federation(tuple(clients), task, dealt.copies)


def _tests(mine: np.ndarray, test: np.ndarray, wanted: int, law: Law | None, random: np.random.Generator) -> np.ndarray:
    """Test images, none twice: by the client's law of labels, or any whose label it has."""
    if law is not None:
        return law.tests(wanted, test, random)
    having = np.flatnonzero(np.isin(test, np.unique(mine)))
    return np.sort(random.permutation(having)[:wanted])


def _records(found: ImageSet, arrays: Arrays, part: str) -> Records:
    images = torch.from_numpy(arrays[f"{part}_images"].astype(np.float32)).div_(255)
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (found.mean, found.std))
    return Records(images.sub_(mean).div_(std), torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64)))


# ---------------------------------------------------------------------- where the files are


def _found(found: ImageSet, config: DataConfig) -> Arrays:
    """The four arrays from the folder that is named; where none is, from the cache, downloaded if need be."""
    given = config.path or os.environ.get(FOLDER, "")
    if not given:
        return _downloaded(found, cache())
    arrays = _held(found, Path(given))
    if arrays is None:
        raise BadValue("data.path", given, f"holds no {found.title}", f"put there {found.wanted}")
    return arrays


def _downloaded(found: ImageSet, path: Path) -> Arrays:
    """From the cache; what cannot be read there can be downloaded again."""
    try:
        arrays = _held(found, path)
        if arrays is None:
            otherwise = f"name a folder that has it with --data or in {FOLDER}"
            fetch(found.title, found.remote, path / found.folders[0], otherwise)
            arrays = _held(found, path)
    except BadValue as bad:
        if bad.field != "file":
            raise
        remedy = f"remove {path / found.folders[0]}, and it is downloaded again"
        raise BadValue(bad.field, bad.value, bad.rule, remedy) from None
    if arrays is None:
        raise BadValue("data.path", path, f"holds no {found.title}", f"put there {found.wanted}")
    return arrays


def _held(found: ImageSet, path: Path) -> Arrays | None:
    """The four arrays, from the first place that has them all; None where there is none."""
    if path.is_file():
        return _archive(found, path)
    for folder in (path / name for name in (*found.folders, ".")):
        if (folder / found.archive).is_file():
            return _archive(found, folder / found.archive)
        arrays = found.published(folder)
        if arrays is not None:
            return _checked(found, arrays, folder)
    return None


def _archive(found: ImageSet, path: Path) -> Arrays:
    """An npz file with four arrays by name; colour may come last, as it mostly does."""
    held = read(path)
    missing = [name for name in NAMES if name not in held]
    if missing:
        raise unreadable(path, f"it has no {', '.join(missing)}", f"its arrays must be {', '.join(NAMES)}")
    return _checked(found, held, path)


def _checked(found: ImageSet, arrays: Arrays, path: Path) -> Arrays:
    """Bytes of the right shape, channels first, and as many labels from 0 to 9."""
    right: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"].ravel()
        channels, height, width = found.shape
        if images.shape[1:] == (height, width) and channels == 1:
            images = images[:, None]
        elif images.shape[1:] == (height, width, channels):
            images = images.transpose(0, 3, 1, 2)
        if images.dtype != np.uint8 or images.shape[1:] != found.shape:
            what = f"{part} images are {images.dtype} of shape {images.shape[1:]}"
            raise unreadable(path, f"its {what}, not uint8 of {found.shape}", f"it should be {found.title}")
        if len(images) != len(labels) or not len(labels):
            raise unreadable(path, f"it has {len(images)} {part} images and {len(labels)} labels", "get it anew")
        if labels.dtype.kind not in "iu" or int(labels.min()) < 0 or int(labels.max()) >= CLASSES:
            raise unreadable(path, f"its {part} labels are not 0 to {CLASSES - 1}", f"it should be {found.title}")
        right |= {f"{part}_images": np.ascontiguousarray(images), f"{part}_labels": labels}
    return right


# ---------------------------------------------------------------------- the published formats


def _idx_files(folder: Path) -> Arrays | None:
    """MNIST's four files, gzipped or not; None where none of them is there."""
    paths = {name: _either(folder, IDX[name], IDX[name].replace("-idx", ".idx")) for name in NAMES}
    there = [path for path in paths.values() if path]
    if not there:
        return None
    for name, path in paths.items():
        if path is None:
            raise unreadable(there[0], f"{IDX[name]} is not beside it", "all four files belong together")
    return {name: _idx(path, IDX_IMAGES if "images" in name else IDX_LABELS) for name, path in paths.items() if path}


def _either(folder: Path, *names: str) -> Path | None:
    tried = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in tried if path.is_file()), None)


def _idx(path: Path, magic: int) -> np.ndarray:
    """One idx file: a number that says what it is, the length of each axis, then the bytes."""
    raw = _bytes(path)
    axes = 3 if magic == IDX_IMAGES else 1
    if len(raw) < 4 * (1 + axes):
        raise unreadable(path, f"it ends after {len(raw)} bytes", "get it anew")
    found, *shape = struct.unpack_from(f">{1 + axes}I", raw)
    if found != magic:
        raise unreadable(path, f"it begins with {found:#x} instead of {magic:#x}", "it is not the idx file it is named")
    expected = 4 * (1 + axes) + int(np.prod(shape, dtype=object))
    if len(raw) != expected:
        raise unreadable(path, f"it has {len(raw)} bytes, and says {expected}", "get it anew")
    return np.frombuffer(raw, np.uint8, offset=4 * (1 + axes)).reshape(shape)


def _bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, f"it is not whole: {error}", "get it anew") from None


def _binary_files(folder: Path) -> Arrays | None:
    """CIFAR-10's binary version: rows of a label and 3,072 bytes, in five files and one for tests."""
    names = [name for part in BINARY.values() for name in part]
    there = [folder / name for name in names if (folder / name).is_file()]
    if not there:
        return None
    for name in names:
        if not (folder / name).is_file():
            raise unreadable(there[0], f"{name} is not beside it", "all six files belong together")
    arrays: dict[str, np.ndarray] = {}
    for part, files in BINARY.items():
        rows = np.concatenate([_rows(folder / name) for name in files])
        arrays |= {f"{part}_labels": rows[:, 0], f"{part}_images": rows[:, 1:].reshape(-1, 3, 32, 32)}
    return arrays


def _rows(path: Path) -> np.ndarray:
    raw = _bytes(path)
    if not raw or len(raw) % ROW:
        raise unreadable(path, f"its {len(raw)} bytes are not rows of {ROW}", "get it anew: it is cut off, or not binary")
    return np.frombuffer(raw, np.uint8).reshape(-1, ROW)


FOUR = "the four idx files, gzipped or not"
IMAGES = {
    "mnist": ImageSet(
        "MNIST", (1, 28, 28), (0.1307,), (0.3081,), "mnist.npz", ("mnist", "MNIST/raw"),
        _idx_files, f"mnist.npz, or {FOUR}", MNIST,
    ),
    "fashion-mnist": ImageSet(
        "Fashion-MNIST", (1, 28, 28), (0.2860,), (0.3530,), "fashion-mnist.npz", ("fashion-mnist", "FashionMNIST/raw"),
        _idx_files, f"fashion-mnist.npz, or {FOUR} in a folder fashion-mnist", FASHION_MNIST,
    ),
    "cifar10": ImageSet(
        "CIFAR-10", (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "cifar10.npz",
        ("cifar10", "cifar-10-batches-bin"), _binary_files,
        "cifar10.npz, or the six .bin files of the binary version (never the pickled one)", CIFAR10,
    ),
}  # fmt: skip
