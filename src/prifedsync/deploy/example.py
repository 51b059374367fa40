"""The example of `deploy init`: handwritten digits as tables of three hospitals, which hold different digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..config import Config, DataConfig, load
from ..data.embedded import digits
from ..data.partition import deal, generator
from ..files import write_file
from .shares import as_table

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
SHARDS = 5  # of sorted digits for each hospital
SEED = 0
TESTS = 297  # rows that no hospital has
UNLABELLED = 20  # of these, without the column of the label
WHITE = 16  # the largest value of a pixel
LABEL = "digit"
CONFIG = "example.toml"


@dataclass(frozen=True)
class Tables:
    """All tables of the example, as files."""

    clients: dict[str, bytes] = field(default_factory=dict)
    rows: bytes = b""  # to predict: they have no label
    test: bytes = b""  # with labels


def tables() -> Tables:
    """Tables of whole numbers, 64 pixels in a row, dealt by shards of sorted digits."""
    records, _ = digits()
    pixels = np.rint(records.x.flatten(1).numpy() * WHITE).astype(int)
    labels = records.y.numpy()
    order = generator(SEED, "deploy example").permutation(len(labels))
    held = order[:TESTS]
    rest = order[TESTS:]
    dealing = DataConfig(clients=len(HOSPITALS), partition="shards", shards_per_client=SHARDS)
    dealt = deal(dealing, labels[rest], SEED).rows.values()
    clients = {name: _table(pixels, labels, rest[mine]) for name, mine in zip(HOSPITALS, dealt, strict=True)}
    rows = as_table([list(_columns()), *_cells(pixels[held[:UNLABELLED]])])
    return Tables(clients, rows, _table(pixels, labels, held))


@contextmanager
def example(overrides: Sequence[str] = ()) -> Iterator[tuple[Config, Tables]]:
    """The config of the example under "key=value" overrides, and its tables in a folder for as long as this lasts."""
    made = tables()
    with TemporaryDirectory() as folder, resources.as_file(resources.files(__package__) / CONFIG) as file:
        for name, content in made.clients.items():
            write_file(Path(folder) / f"{name}.csv", content, private=True)
        yield load(file, overrides, folder), made


def _columns() -> tuple[str, ...]:
    return tuple(f"pixel{at}" for at in range(64))


def _cells(pixels: np.ndarray) -> list[list[str]]:
    return [[str(value) for value in row] for row in pixels.tolist()]


def _table(pixels: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> bytes:
    cells = _cells(pixels[rows])
    labelled = [[*row, str(label)] for row, label in zip(cells, labels[rows].tolist(), strict=True)]
    return as_table([[*_columns(), LABEL], *labelled])
