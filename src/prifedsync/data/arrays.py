"""Arrays of records: npz files, and what a function of yours returns."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue
from . import labels
from .federation import Client, Federation, Records, Task, paired
from .folder import files, unreadable
from .partition import divided, federated, held_out, taken
from .scale import EVERY, constant_of, key, range_of, scaled

if TYPE_CHECKING:
    from ..config import DataConfig


def from_npz(config: DataConfig, task: Task, seed: int) -> Federation:
    """The federation in one npz file a client (x, y, perhaps x_test and y_test), or in one file for all (x, y, client)."""
    found = files(config, ".npz")
    if isinstance(found, Path):
        return _one_file(config, task, found, seed)
    clients = []
    for name, path in found.items():
        held = read(path)
        who = f"client {name!r}, {path.name}"
        parts = [_array(held, part, who) for part in ("x", "y")]
        if "x_test" in held or "y_test" in held:
            parts += [_array(held, part, who) for part in ("x_test", "y_test")]
        clients.append(client(config, task, name, parts, seed, who))
    return Federation(tuple(clients), task)


def client(config: DataConfig, task: Task, name: str, parts: list[np.ndarray], seed: int, who: str) -> Client:
    """A client from x, y, and perhaps its own test x, y; without these, some records are held out."""
    train = records(config, parts[0], parts[1], task, who)
    if len(parts) == 2:
        return held_out(name, train, config.test_fraction, seed)
    if not parts[2].size and not parts[3].size:  # of any shape, since it holds nothing
        return Client(name, train, Records(train.x[:0], train.y[:0]))
    return Client(name, train, records(config, parts[2], parts[3], task, f"{who}, test"))


def _one_file(config: DataConfig, task: Task, path: Path, seed: int) -> Federation:
    held = read(path)
    column = config.client_column or "client"
    everybody = records(config, _array(held, "x", path.name), _array(held, "y", path.name), task, path.name)
    if column not in held and not config.client_column:
        return divided(config, everybody, task, seed)
    owners = _array(held, column, path.name)
    if owners.shape != (len(everybody),) or owners.dtype.kind not in "iuUS":
        rule = f"must be one name or whole number for each of the {len(everybody)} records"
        raise BadValue(f"{path.name}, array {column}", f"{owners.dtype} of shape {owners.shape}", rule)
    named = np.char.decode(owners, "utf-8", "replace") if owners.dtype.kind == "S" else owners
    clients = {str(name): taken(everybody, np.flatnonzero(named == name)) for name in np.unique(named)}
    return federated(config, clients, task, seed)


# What a zip file does that is damaged, encrypted (RuntimeError) or packed in a way of its own (NotImplementedError).
UNREADABLE = (
    OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError
)  # fmt: skip


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an npz file; pickled ones are refused, since opening them would run what is in them."""
    remedy = "write it with numpy.savez(file, x=x, y=y), without objects"
    try:
        with path.open("rb") as file:  # numpy leaves a file open that it cannot read
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                held = {name: archive[name] for name in archive.files}
                if all(isinstance(values, np.ndarray) for values in held.values()):
                    return held
                raise ValueError("it holds something that is not an array")
    except UNREADABLE as error:
        raise unreadable(path, " ".join(str(error).split()) or "it is not an npz file", remedy) from None
    raise unreadable(path, "it is a single array", remedy)


def _array(held: dict[str, np.ndarray], name: str, who: str) -> np.ndarray:
    if name not in held:
        there = ", ".join(held) or "none"
        raise BadValue(f"{who}, arrays", there, f"must include {name}", "write it with numpy.savez(file, x=x, y=y)")
    return held[name]


def records(config: DataConfig, x: np.ndarray, y: np.ndarray, task: Task, who: str) -> Records:
    """Records and labels from arrays; whole numbers stay tokens unless a range says that they are values."""
    _rules(config, task)
    paired(who, x, y)
    values = torch.from_numpy(_values(config, x, who))

    def place(i: int) -> str:
        return f"{who}, label of record {i}"

    if config.label_values or y.dtype.kind in "US":
        texts = np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y
        return Records(values, labels.from_texts([str(text).strip() for text in texts.tolist()], task, config, place))
    if y.dtype.kind not in "biuf":
        raise BadValue(f"{who}, y", y.dtype, "must hold numbers or texts", "convert it")
    return Records(values, labels.from_numbers(y.astype(np.float64), task, config, place))


def _values(config: DataConfig, x: np.ndarray, who: str) -> np.ndarray:
    span, constant = range_of(config.ranges, EVERY), constant_of(config.missing, EVERY)
    if x.dtype.kind not in "biuf":
        raise BadValue(f"{who}, x", x.dtype, "must hold numbers", "encode texts as numbers first")
    if x.dtype.kind in "iu" and span is None:
        return x.astype(np.int64)
    values = x.astype(np.float64 if x.dtype.itemsize > 4 or span else np.float32)
    if constant is not None:
        values = np.where(np.isnan(values), constant, values)
    _finite(values, x, who, "must be finite", f"fill it in, or give {key('missing', EVERY)} a constant for NaN")
    with np.errstate(over="ignore"):  # refused in the next line
        single = (values if span is None else scaled(values, span)).astype(np.float32)
    _finite(single, x, who, "does not fit a 32-bit float", f"give its range in {key('ranges', EVERY)}")
    return single


def _finite(values: np.ndarray, given: np.ndarray, who: str, rule: str, remedy: str) -> None:
    wrong = ~np.isfinite(values)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise BadValue(f"{who}, x[{', '.join(map(str, at))}]", given[at], rule, remedy)


def _rules(config: DataConfig, task: Task) -> None:
    """Refuses rules for columns by name: arrays have none."""
    only = f'arrays have no column names: only "{EVERY}"'
    for table, known in (
        ("ranges", {EVERY, config.label} if task.kind == "regression" else {EVERY}),
        ("missing", {EVERY}),
        ("categories", set[str]()),
    ):
        for name, value in getattr(config, table).items():
            if name not in known:
                rule = f"cannot go with data.source = {config.source}"
                raise BadValue(
                    key(table, name), value, rule, only if table != "categories" else "encode texts as numbers first"
                )
    if config.columns:
        rule = f"cannot go with data.source = {config.source}"
        raise BadValue("data.columns", list(config.columns), rule, "arrays have no column names: leave it out")
