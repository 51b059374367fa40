"""Records from arrays: npz files, and the arrays that a user's function returns."""

from __future__ import annotations

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue
from . import labels
from .array_encoding import ArrayEncoding
from .federation import Client, Federation, Records, Task, paired
from .folder import files, refuse_duplicates, unreadable
from .partition import divided, federated, held_out, subset
from .persons import from_array
from .scale import EVERY, key

if TYPE_CHECKING:
    from ..config import DataConfig

Arrays = Sequence[np.ndarray]  # x, y, and persons where data.person is set


def from_npz(config: DataConfig, task: Task, seed: int) -> Federation:
    """The federation in npz files.

    Each client has a file with x, y, and perhaps x_test and y_test; or one file has x, y and client for all clients.
    With data.person, there are the ids of persons too, in arrays of that name and perhaps of that name with _test.
    """
    return replace(_from_npz(config, task, seed), encoding=ArrayEncoding.of(config))


def _from_npz(config: DataConfig, task: Task, seed: int) -> Federation:
    paths = files(config, ".npz")
    if isinstance(paths, Path):
        return _one_file(config, task, paths, seed)
    clients = []
    digests = {}
    for name, path in paths.items():
        held = read(path)
        who = f"client {name!r}, {path.name}"
        arrays = ("x", "y", config.person) if config.person else ("x", "y")
        sets = [[_array(held, part, who) for part in arrays]]
        if "x_test" in held or "y_test" in held:
            sets.append([_array(held, f"{part}_test", who) for part in arrays])
        clients.append(client(config, task, name, sets, seed, who))
        digests[name] = (path.name, _digest(sets[0][:2]))
    refuse_duplicates(digests)
    return Federation(tuple(clients), task)


def _digest(parts: Sequence[np.ndarray]) -> bytes:
    """The same for arrays with the same values, whatever their order in memory."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.dtype.str} {part.shape}".encode())
        digest.update(part.tobytes())
    return digest.digest()


def client(config: DataConfig, task: Task, name: str, sets: Sequence[Arrays], seed: int, who: str) -> Client:
    """A client from the arrays of its training set, and perhaps of its test set: x, y, and persons with data.person.

    Without a test set, some of its records are held out.
    """
    x, y, *_ = sets[0]
    train = records(config, x, y, task, who)
    tests = [each for each in sets[1:] if each[0].size or each[1].size]  # an empty test set may have any shape
    parts = [train, *(records(config, x, y, task, f"{who}, test") for x, y, *_ in tests)]
    if config.person:
        ids = [np.asarray(each[2]) for each in (sets[0], *tests)]
        parts = [replace(part, persons=from_array(own, len(part), who)) for part, own in zip(parts, ids, strict=True)]
    if len(sets) == 1:
        return held_out(name, parts[0], config.test_fraction, seed)
    return Client(name, parts[0], parts[1] if tests else subset(parts[0], np.arange(0)))


def _one_file(config: DataConfig, task: Task, path: Path, seed: int) -> Federation:
    held = read(path)
    column = config.client_column or "client"
    x = _array(held, "x", path.name)
    y = _array(held, "y", path.name)
    pooled = records(config, x, y, task, path.name)
    if config.person:
        ids = from_array(_array(held, config.person, path.name), len(pooled), path.name)
        pooled = replace(pooled, persons=ids)
    if column not in held and not config.client_column:
        return divided(config, pooled, task, seed)
    owners = _array(held, column, path.name)
    if owners.shape != (len(pooled),) or owners.dtype.kind not in "iuUS":
        rule = f"must hold one name or whole number for each of the {len(pooled)} records"
        remedy = "give every record the name or number of its client"
        shown = f"{owners.dtype} of shape {owners.shape}"
        raise BadValue(f"{path.name}, array {column}", shown, rule, remedy)
    named = np.char.decode(owners, "utf-8", "replace") if owners.dtype.kind == "S" else owners
    clients = {str(name): subset(pooled, np.flatnonzero(named == name)) for name in np.unique(named)}
    return federated(config, clients, task, seed)


# Errors of a zip file that is damaged, encrypted (RuntimeError) or compressed by an unknown method (NotImplementedError).
UNREADABLE = (
    OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError
)  # fmt: skip


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an npz file. Pickled arrays are refused: opening one runs code from the file."""
    remedy = "write it with numpy.savez(file, x=x, y=y), without objects"
    try:
        with path.open("rb") as file:  # numpy does not close a file that it cannot read
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                held = {name: archive[name] for name in archive.files}
                if all(isinstance(values, np.ndarray) for values in held.values()):
                    return held
                raise ValueError("it holds something that is not an array")
    except UNREADABLE as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        why = " ".join(said.split()) or "it is not an npz file"
        raise unreadable(path, why, remedy) from None
    raise unreadable(path, "it is a single array", remedy)


def _array(held: dict[str, np.ndarray], name: str, who: str) -> np.ndarray:
    if name not in held:
        names = ", ".join(held) or "none"
        remedy = "write it with numpy.savez(file, x=x, y=y)"
        raise BadValue(f"{who}, arrays", names, f"must include {name}", remedy)
    return held[name]


def records(config: DataConfig, x: np.ndarray, y: np.ndarray, task: Task, who: str) -> Records:
    """Records and labels from arrays. Whole numbers are tokens, unless the config has a range for them."""
    _check_settings(config, task)
    paired(who, x, y)
    label = labels.Label.of(config, task)
    values = torch.from_numpy(_values(config, x, who))

    def place(i: int) -> str:
        return f"{who}, label of record {i}"

    if config.label_values or y.dtype.kind in "US":
        decoded = np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y
        texts = [str(text).strip() for text in decoded.tolist()]
        return Records(values, label.from_texts(texts, place))
    if y.dtype.kind not in "biuf":
        remedy = "convert the labels to numbers or texts"
        raise BadValue(f"{who}, y", y.dtype, "must hold numbers or texts", remedy)
    return Records(values, label.from_numbers(y.astype(np.float64), place))


def _values(config: DataConfig, x: np.ndarray, who: str) -> np.ndarray:
    encoding = ArrayEncoding.of(config)
    if x.dtype.kind not in "biuf":
        raise BadValue(f"{who}, x", x.dtype, "must hold numbers", "encode texts as numbers first")
    if x.dtype.kind in "iu" and encoding.span is None:
        encoding = replace(encoding, tokens=True)
    values = encoding.filled(x)
    remedy = f"replace it, or set {key('missing', EVERY)} to a constant for NaN"
    _finite(values, x, who, "must be finite", remedy)
    single = encoding.encoded(values)
    _finite(single, x, who, "does not fit a 32-bit float", f"set a range in {key('ranges', EVERY)}")
    return single


def _finite(values: np.ndarray, given: np.ndarray, who: str, rule: str, remedy: str) -> None:
    wrong = ~np.isfinite(values)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise BadValue(f"{who}, x[{', '.join(map(str, at))}]", given[at], rule, remedy)


def _check_settings(config: DataConfig, task: Task) -> None:
    """Refuse settings of single columns: arrays have no column names."""
    rule = f"cannot be used with data.source = {config.source}"
    only = f'remove it, or name it "{EVERY}": arrays have no column names'
    for table, known, remedy in (
        ("ranges", {EVERY, config.label} if task.kind == "regression" else {EVERY}, only),
        ("missing", {EVERY}, only),
        ("categories", set[str](), "encode texts as numbers first"),
    ):
        for name, value in getattr(config, table).items():
            if name not in known:
                raise BadValue(key(table, name), value, rule, remedy)
    if config.columns:
        remedy = "leave it out: arrays have no column names"
        raise BadValue("data.columns", list(config.columns), rule, remedy)
