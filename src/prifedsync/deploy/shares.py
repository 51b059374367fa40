"""Each client's own file of records, taken from where a config finds all of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..config import DataConfig
from ..data import arrays, sheet
from ..data.folder import files
from ..values import BadValue

Share = bytes | Path  # the file itself, or the file to copy


def shares_of(data: DataConfig) -> dict[str, Share]:
    """The file of each client by its name."""
    ending = f".{data.source}"
    paths = files(data, ending)
    if isinstance(paths, Path):
        return dict(_parts_of_table(data, paths) if data.source == "csv" else _parts_of_arrays(data, paths))
    return dict(paths)


def _parts_of_table(data: DataConfig, path: Path) -> dict[str, bytes]:
    """The rows of each client as a table of its own, without the column that names the client."""
    if not data.client_column:
        raise _undivided(path, "name the column of the client in data.client_column")
    separator = "\t" if data.separator == "tab" else data.separator
    whole = sheet.read(path, separator)
    at = whole.header.index(data.client_column)
    rows: dict[str, list[list[str]]] = {}
    for row in whole.rows:
        rows.setdefault(row[at], []).append(_without(row, at))
    header = _without(list(whole.header), at)
    return {name: as_table([header, *own], separator) for name, own in rows.items()}


def as_table(rows: list[list[str]], separator: str = ",") -> bytes:
    """Rows of texts as a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _without(row: list[str], at: int) -> list[str]:
    return [*row[:at], *row[at + 1 :]]


def _parts_of_arrays(data: DataConfig, path: Path) -> dict[str, bytes]:
    """The records of each client as arrays of its own, without the array that names the client."""
    held = arrays.read(path)
    column = data.client_column or "client"
    if column not in held:
        raise _undivided(path, "add an array `client`, or name the array of the client in data.client_column")
    owners = held[column]
    named = np.char.decode(owners, "utf-8", "replace") if owners.dtype.kind == "S" else owners
    kept = ["x", "y", *([data.person] if data.person else [])]
    return {str(name): _as_arrays({each: held[each][named == name] for each in kept}) for name in np.unique(named)}


def _as_arrays(parts: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **parts)  # type: ignore[arg-type]  # the names are those of arrays
    return file.getvalue()


def _undivided(path: Path, remedy: str) -> BadValue:
    rule = "holds all records and does not say whose they are: `deploy init` does not deal records to clients"
    return BadValue("data.path", path, rule, f"{remedy}, or give a folder with one file for each client")
