"""MNIST, Fashion-MNIST and CIFAR-10, from the published files or from npz archives of the same images.

Pickled files are never loaded. Pixels are scaled by published constants. A client's test records are official test images
whose labels it trains on; with the Dirichlet partition they are drawn from the label distribution of its training records.
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
from .array_encoding import ArrayEncoding
from .arrays import read
from .dirichlet import LabelDistribution
from .download import CIFAR10, FASHION_MNIST, MNIST, Remote, cache, fetch
from .embedded import refuse_descriptions
from .federation import Client, Federation, Records, Task
from .folder import unreadable
from .partition import deal, generator, subset

if TYPE_CHECKING:
    from ..config import DataConfig

FOLDER = "PRIFEDSYNC_DATA"  # environment variable: the folder of data sets, if --data and data.path are not set
CLASSES = 10
IDX_IMAGES = 0x803  # unsigned bytes in three dimensions
IDX_LABELS = 0x801  # unsigned bytes in one dimension
NAMES = ("train_images", "train_labels", "test_images", "test_labels")
IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
BINARY = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
ANEW = "download the file again"
ROW = 1 + 3 * 32 * 32  # bytes of a row in CIFAR-10's binary version: a label, then red, green and blue

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ImageSet:
    """A published data set: the shape of its images (channels first), the scale of its pixels, and where its files are."""

    title: str
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    archive: str
    folders: tuple[str, ...]
    published: Callable[[Path], Arrays | None]  # reads the published files in a folder
    files: str  # the files to provide, in words
    remote: Remote

    @property
    def encoding(self) -> ArrayEncoding:
        """Pixels from 0 to 255 as numbers in [0, 1], then with the published mean and standard deviation as 0 and 1."""
        return ArrayEncoding(divisor=255, mean=self.mean, std=self.std)


def load(config: DataConfig, seed: int) -> Federation:
    """The training images, split over clients by `data.partition`; each client has test images with its own labels."""
    image_set = IMAGES[config.source]
    task = Task("classes", CLASSES)
    refuse_descriptions(config, task)
    arrays = _arrays(image_set, config)
    train = _records(image_set, arrays, "train")
    test = _records(image_set, arrays, "test")
    dealt = deal(config, train.y.numpy(), seed)
    clients = []
    for name, rows in dealt.rows.items():
        mine = subset(train, rows)
        random = generator(seed, "test images", name)
        distribution = dealt.distributions.get(name)
        test_rows = _tests(mine.y.numpy(), test.y.numpy(), config.test_records, distribution, random)
        clients.append(Client(name, mine, subset(test, test_rows)))
    return Federation(tuple(clients), task, dealt.copies, image_set.encoding)


def _tests(
    mine: np.ndarray,
    test: np.ndarray,
    wanted: int,
    distribution: LabelDistribution | None,
    random: np.random.Generator,
) -> np.ndarray:
    """The indices of different test images: from the client's label distribution, or with any label it trains on."""
    if distribution is not None:
        return distribution.tests(wanted, test, random)
    with_label = np.flatnonzero(np.isin(test, np.unique(mine)))
    return np.sort(random.permutation(with_label)[:wanted])


def _records(image_set: ImageSet, arrays: Arrays, part: str) -> Records:
    pixels = image_set.encoding.filled(arrays[f"{part}_images"])
    labels = torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64))
    return Records(torch.from_numpy(image_set.encoding.encoded(pixels)), labels)


# ---------------------------------------------------------------------- where the files are


def _arrays(image_set: ImageSet, config: DataConfig) -> Arrays:
    """The four arrays from the folder that the user named; otherwise from the cache, after a download if necessary."""
    given = config.path or os.environ.get(FOLDER, "")
    if not given:
        return _downloaded(image_set, cache())
    arrays = _held(image_set, Path(given))
    if arrays is None:
        remedy = f"add to the folder: {image_set.files}"
        raise BadValue("data.path", given, f"holds no {image_set.title}", remedy)
    return arrays


def _downloaded(image_set: ImageSet, path: Path) -> Arrays:
    """The four arrays from the cache. A file there that cannot be read can be downloaded again."""
    try:
        arrays = _held(image_set, path)
        if arrays is None:
            otherwise = f"name a folder that has them with --data or in {FOLDER}"
            fetch(image_set.title, image_set.remote, path / image_set.folders[0], otherwise)
            arrays = _held(image_set, path)
    except BadValue as bad:
        if bad.field != "file":
            raise
        remedy = f"remove {path / image_set.folders[0]}, then it is downloaded again"
        raise BadValue(bad.field, bad.value, bad.rule, remedy) from None
    if arrays is None:
        remedy = f"add to the folder: {image_set.files}"
        raise BadValue("data.path", path, f"holds no {image_set.title}", remedy)
    return arrays


def _held(image_set: ImageSet, path: Path) -> Arrays | None:
    """The four arrays, from the first place that has them all; None if no place has them."""
    if path.is_file():
        return _archive(image_set, path)
    for folder in (path / name for name in (*image_set.folders, ".")):
        if (folder / image_set.archive).is_file():
            return _archive(image_set, folder / image_set.archive)
        arrays = image_set.published(folder)
        if arrays is not None:
            return _checked(image_set, arrays, folder)
    return None


def _archive(image_set: ImageSet, path: Path) -> Arrays:
    """The four arrays of an npz file. The colour axis of images may come last."""
    held = read(path)
    missing = [name for name in NAMES if name not in held]
    if missing:
        remedy = f"its arrays must be {', '.join(NAMES)}"
        raise unreadable(path, f"it has no {', '.join(missing)}", remedy)
    return _checked(image_set, held, path)


def _checked(image_set: ImageSet, arrays: Arrays, path: Path) -> Arrays:
    """Images as bytes of the right shape, channels first, and one label from 0 to 9 for each."""
    checked: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        images = arrays[f"{part}_images"]
        labels = arrays[f"{part}_labels"].ravel()
        channels, height, width = image_set.shape
        if images.shape[1:] == (height, width) and channels == 1:
            images = images[:, None]
        elif images.shape[1:] == (height, width, channels):
            images = images.transpose(0, 3, 1, 2)
        if images.dtype != np.uint8 or images.shape[1:] != image_set.shape:
            why = f"its {part} images are {images.dtype} of shape {images.shape[1:]}, not uint8 of {image_set.shape}"
            raise unreadable(path, why, f"use the files of {image_set.title}")
        if len(images) != len(labels) or not len(labels):
            why = f"it has {len(images)} {part} images and {len(labels)} labels"
            raise unreadable(path, why, ANEW)
        if labels.dtype.kind not in "iu" or int(labels.min()) < 0 or int(labels.max()) >= CLASSES:
            why = f"its {part} labels are not 0 to {CLASSES - 1}"
            raise unreadable(path, why, f"use the files of {image_set.title}")
        checked[f"{part}_images"] = np.ascontiguousarray(images)
        checked[f"{part}_labels"] = labels
    return checked


# ---------------------------------------------------------------------- the published formats


def _idx_files(folder: Path) -> Arrays | None:
    """The arrays of MNIST's four files, gzipped or not; None if the folder has none of them."""
    paths = {name: _either(folder, IDX[name], IDX[name].replace("-idx", ".idx")) for name in NAMES}
    present = [path for path in paths.values() if path]
    if not present:
        return None
    arrays = {}
    for name, path in paths.items():
        if path is None:
            remedy = "put all four files into the folder"
            raise unreadable(present[0], f"{IDX[name]} is missing beside it", remedy)
        arrays[name] = _idx(path, IDX_IMAGES if "images" in name else IDX_LABELS)
    return arrays


def _either(folder: Path, *names: str) -> Path | None:
    tried = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in tried if path.is_file()), None)


def _idx(path: Path, magic: int) -> np.ndarray:
    """The array in an idx file: a number for the kind of file, the length of each axis, then the bytes."""
    raw = _bytes(path)
    axes = 3 if magic == IDX_IMAGES else 1
    if len(raw) < 4 * (1 + axes):
        raise unreadable(path, f"it ends after {len(raw)} bytes", ANEW)
    start, *shape = struct.unpack_from(f">{1 + axes}I", raw)
    if start != magic:
        why = f"it begins with {start:#x} instead of {magic:#x}"
        raise unreadable(path, why, "use the idx file of this name")
    expected = 4 * (1 + axes) + int(np.prod(shape, dtype=object))
    if len(raw) != expected:
        raise unreadable(path, f"it has {len(raw)} bytes, but its header says {expected}", ANEW)
    return np.frombuffer(raw, np.uint8, offset=4 * (1 + axes)).reshape(shape)


def _bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, f"it is not complete: {error}", ANEW) from None


def _binary_files(folder: Path) -> Arrays | None:
    """The arrays of CIFAR-10's binary version: rows of a label and 3,072 bytes, in five training files and a test file."""
    names = [name for part in BINARY.values() for name in part]
    present = [folder / name for name in names if (folder / name).is_file()]
    if not present:
        return None
    for name in names:
        if not (folder / name).is_file():
            remedy = "put all six files into the folder"
            raise unreadable(present[0], f"{name} is missing beside it", remedy)
    arrays: dict[str, np.ndarray] = {}
    for part, files in BINARY.items():
        rows = np.concatenate([_rows(folder / name) for name in files])
        arrays[f"{part}_labels"] = rows[:, 0]
        arrays[f"{part}_images"] = rows[:, 1:].reshape(-1, 3, 32, 32)
    return arrays


def _rows(path: Path) -> np.ndarray:
    raw = _bytes(path)
    if not raw or len(raw) % ROW:
        remedy = "download the binary version again: the file is cut off, or of another version"
        raise unreadable(path, f"its {len(raw)} bytes are not rows of {ROW}", remedy)
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
