"""Raw rows from a file, a data frame or an array, encoded by the public rules of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Encoding
from ..data.array_encoding import ArrayEncoding
from ..data.arrays import read as read_npz
from ..data.near import meant
from ..data.preprocessing import Preprocessing
from ..data.sheet import read as read_csv
from ..data.text import as_number, is_missing
from ..values import BadValue

Given = Any  # the path of a file, a data frame, a mapping of column → values, or an array: whatever users have
Place = Callable[[int, str], str]  # where the value of a row in a column is, in words
AS_TRAINED = "correct the cell: the rules are those that the model was trained with"
MOST_NAMES = 6  # columns that a refusal lists


@dataclass(frozen=True, eq=False)
class Table:
    """Raw rows by column."""

    name: str  # where the rows are from, in words
    columns: Mapping[str, Sequence[object]]
    place: Place

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


@dataclass(frozen=True, eq=False)
class Accepted:
    """The rows that the rules accept, as records; and why the others are refused."""

    x: Tensor  # [accepted, …]
    rows: np.ndarray  # [accepted], their numbers among all rows
    count: int  # of all rows
    refused: Mapping[int, BadValue]
    place: Callable[[int], str]  # where a row is, in words


def encoded(given: Given, rules: Preprocessing) -> Accepted:
    """The rows as records, by the rules of the run."""
    if isinstance(rules.encoding, Encoding):
        return from_table(table_of(given, rules), rules.encoding)
    if isinstance(given, (str, Path)) and Path(given).suffix.lower() == ".npz":
        if not Path(given).is_file():
            raise BadValue("rows", given, "is not a file", "name an npz file with an array x, or a CSV file")
        held = read_npz(Path(given))
        if "x" not in held:
            raise BadValue(f"{Path(given).name}, arrays", ", ".join(held), "must include x", "write numpy.savez(file, x=x)")
        return from_array(held["x"], rules)
    is_array = not isinstance(given, (str, Path, Mapping)) and not hasattr(given, "columns")
    if is_array:
        return from_array(as_array(given), rules)
    return _in_order(table_of(given, rules), rules)


def from_table(table: Table, encoding: Encoding) -> Accepted:
    """The rows of a table by the rules of its columns."""
    check_columns(table, encoding.names)
    found = encoding.encode(table.columns, table.place)
    keep = np.ones(len(found.x), dtype=bool)
    keep[list(found.refusals)] = False
    refused = {row: BadValue(why.field, why.value, why.rule, AS_TRAINED) for row, why in found.refusals.items()}
    first = encoding.names[0]
    x = torch.from_numpy(found.x[keep])
    return Accepted(x, np.flatnonzero(keep), len(keep), refused, lambda row: table.place(row, first))


def check_columns(table: Table, names: Sequence[str]) -> None:
    """Refuse a table that lacks one of these columns, with the name that may have been meant."""
    lacking = [name for name in names if name not in table.columns]
    if not lacking:
        return
    near = meant(lacking[0], list(table.columns))
    shown = ", ".join(map(repr, lacking[:MOST_NAMES])) + " …" * (len(lacking) > MOST_NAMES)
    remedy = f"rename {near!r} if that is {lacking[0]!r}, or add the column" if near else "add the column"
    raise BadValue(f"{table.name}, missing columns", shown, "must be there: the model was trained with them", remedy)


# ---------------------------------------------------------------------- tables


def table_of(given: Given, rules: Preprocessing) -> Table:
    """Rows with named columns: a CSV file, a data frame, a mapping, or an array in the order of the columns."""
    if isinstance(given, (str, Path)):
        return _file(Path(given), rules)
    if hasattr(given, "columns") or isinstance(given, Mapping):
        names = given if isinstance(given, Mapping) else given.columns
        return Table("rows", {str(name): list(given[name]) for name in names}, _row)
    return _array_table(as_array(given), rules.columns)


def _file(path: Path, rules: Preprocessing) -> Table:
    if not path.is_file():
        raise BadValue("rows", path, "is not a file", "name a CSV file with a header")
    encoding = rules.encoding
    if isinstance(encoding, Encoding) and path.suffix.lower() == ".npz":
        raise BadValue("rows", path, "is an npz file, and this run was trained on tables", "give a CSV file with a header")
    sheet = read_csv(path, encoding.separator, trained=True) if isinstance(encoding, Encoding) else read_csv(path)
    return Table(path.name, {name: sheet.column(name) for name in sheet.header}, sheet.place)


def _array_table(values: np.ndarray, columns: Sequence[str]) -> Table:
    if values.ndim != 2 or values.shape[1] != len(columns):
        rule = f"must be (n, {len(columns)}): the raw values of {', '.join(columns[:MOST_NAMES])}"
        rule += " …" * (len(columns) > MOST_NAMES)
        raise BadValue(
            "rows, shape of the array", values.shape, rule, "give a data frame, or values in the order of .columns"
        )
    return Table("rows", {name: values[:, at].tolist() for at, name in enumerate(columns)}, _row)


def _row(row: int, column: str) -> str:
    return f"row {row}, column {column!r}"


# ---------------------------------------------------------------------- arrays


def as_array(given: Given) -> np.ndarray:
    """The values as an array; lists of numbers and texts become objects, so that numbers stay numbers."""
    if isinstance(given, Tensor):
        plain = given.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # numpy has no bfloat16
    try:
        values = np.asarray(given)
        return np.asarray(given, dtype=object) if values.dtype.kind in "US" else values
    except ValueError:
        raise BadValue("rows", type(given).__name__, "is not an array: its rows have different lengths") from None


def from_array(values: np.ndarray, rules: Preprocessing, place: Place | None = None) -> Accepted:
    """The records of an array [n, …] of raw values."""
    encoding = rules.encoding
    assert isinstance(encoding, ArrayEncoding)
    width = math.prod(rules.shape)
    if values.dtype.kind not in "biuf":
        raise BadValue("rows", values.dtype, "must hold numbers", "give numbers as in training")
    if values.ndim < 2 or values.shape[1:] not in _shapes(rules.shape):
        rule = f"must be {' or '.join(f'(n, {_listed(shape)})' for shape in _shapes(rules.shape))}"
        raise BadValue("rows, shape of the array", values.shape, rule, "give one record in each row, as in training")
    flat = values.reshape(len(values), width)
    if encoding.tokens:
        wrong = ~np.isfinite(flat) | (flat != np.floor(flat))
        filled = encoding.filled(np.where(wrong, 0, flat))
    else:
        filled = encoding.filled(flat)
        wrong = ~np.isfinite(filled)
    x = encoding.encoded(filled.reshape(len(values), *rules.shape))
    wrong |= ~np.isfinite(x.reshape(wrong.shape))
    return _accepted(x, flat, wrong, "whole number" if encoding.tokens else "finite number", place or _row)


def _shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes in which a record may be given: its own, without its only channel, and as one row of values."""
    plain = [shape[1:]] if len(shape) > 1 and shape[0] == 1 else []
    return list(dict.fromkeys([shape, *plain, (math.prod(shape),)]))


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _accepted(x: np.ndarray, flat: np.ndarray, wrong: np.ndarray, wanted: str, place: Place) -> Accepted:
    """The records without the rows in which a value is wrong."""
    keep = np.logical_not(wrong.any(axis=1))
    refused = {}
    for row in np.flatnonzero(~keep).tolist():
        at = int(np.argmax(wrong[row]))
        rule = f"must be a {wanted} that fits 32 bits, and no constant replaces a missing value"
        refused[row] = BadValue(place(row, f"x{at}"), flat[row, at], rule, AS_TRAINED)
    return Accepted(torch.from_numpy(x[keep]), np.flatnonzero(keep), len(keep), refused, lambda row: place(row, "x0"))


def _in_order(table: Table, rules: Preprocessing) -> Accepted:
    """The records of a table that has one column for each value of an array, in order; names do not matter."""
    width = math.prod(rules.shape)
    if len(table.columns) != width:
        rule = f"must be {width}: one column for each value of a record, in order"
        raise BadValue(f"{table.name}, number of columns", len(table.columns), rule, "give these columns and no others")
    names = list(table.columns)
    values = np.full((len(table), width), np.nan)
    for at, cells in enumerate(table.columns.values()):
        for row, cell in enumerate(cells):
            number = None if is_missing(cell) else as_number(cell)
            values[row, at] = math.nan if number is None else number

    def place(row: int, column: str) -> str:
        return table.place(row, names[int(column.removeprefix("x"))])

    return from_array(values, rules, place)
