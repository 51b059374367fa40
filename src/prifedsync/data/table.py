"""CSV files: a header, a column of labels, and columns of numbers or of texts that the config lists."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue
from . import labels
from .federation import Federation, Records, Task
from .folder import files, unreadable
from .partition import divided, federated, subset
from .persons import from_texts
from .scale import EVERY, constant_of, key, range_of, scaled
from .text import as_number, is_missing

if TYPE_CHECKING:
    from ..config import DataConfig

MOST_NAMES = 12  # that an error message lists


@dataclass(frozen=True)
class Sheet:
    """The rows of a file with their line numbers and owners. There are no owners if the file is still to be split."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    owners: Sequence[str] = ()

    def column(self, name: str) -> list[str]:
        at = self.header.index(name)
        return [row[at] for row in self.rows]

    def place(self, i: int, column: str) -> str:
        """Where a value is, in words."""
        whose = f"client {self.owners[i]!r}, " if self.owners else ""
        return f"{whose}{self.path.name} line {self.lines[i]}, column {column!r}"


def from_csv(config: DataConfig, task: Task, seed: int) -> Federation:
    """The federation in one file per client, or in one file for all clients."""
    paths = files(config, ".csv")
    if not isinstance(paths, Path):
        return federated(config, _one_file_each(config, task, paths), task, seed)
    sheet = read(paths)
    features = columns(config, sheet, task)
    if not config.client_column:
        return divided(config, records(config, sheet, features, task), task, seed)
    owners = sheet.column(config.client_column)
    for i, owner in enumerate(owners):
        if is_missing(owner):
            place = sheet.place(i, config.client_column)
            remedy = "fill in the name of the client"
            raise BadValue(place, repr(owner), "must name a client", remedy)
    pooled = records(config, replace(sheet, owners=owners), features, task)
    owner_of = np.array(owners)
    clients = {name: subset(pooled, np.flatnonzero(owner_of == name)) for name in sorted(set(owners))}
    return federated(config, clients, task, seed)


def _one_file_each(config: DataConfig, task: Task, paths: dict[str, Path]) -> dict[str, Records]:
    first: Sheet | None = None
    features: tuple[str, ...] = ()
    clients = {}
    for name, path in paths.items():
        sheet = read(path, owner=name)
        if first is None:
            first = sheet
            features = columns(config, sheet, task)
        reserved = {config.label, *([config.person] if config.person else [])}
        wanted = {*features, *reserved} if config.columns else set(first.header)
        present = set(sheet.header) & wanted if config.columns else set(sheet.header)
        if present != wanted:
            missing = [f"without {column!r}" for column in sorted(wanted - present)]
            extra = [f"with {column!r}" for column in sorted(present - wanted)]
            rule = f"must be the same as in {first.path.name}"
            remedy = "give all files the same columns, or list the features in data.columns"
            differences = ", ".join(missing + extra)
            raise BadValue(f"client {name!r}, columns of {path.name}", differences, rule, remedy)
        clients[name] = records(config, sheet, features, task)
    return clients


def read(path: Path, owner: str = "") -> Sheet:
    """The file as texts without surrounding blanks. Empty lines are left out."""
    rows = []
    lines = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = tuple(name.strip() for name in next(reader, []))
            for row in reader:
                if row:
                    rows.append([cell.strip() for cell in row])
                    lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise unreadable(path, "it is not UTF-8 text", "save it as CSV in UTF-8") from None
    except csv.Error as error:
        why = f"line {reader.line_num}: {error}"
        raise unreadable(path, why, "check the quotes in this line") from None
    except OSError as error:
        raise unreadable(path, str(error.strerror), "check the file and its permissions") from None
    if not header:
        remedy = "write the names of the columns in the first line"
        raise unreadable(path, "its first line is empty", remedy)
    sheet = Sheet(path, header, rows, lines, [owner] * len(rows) if owner else ())
    _check_form(sheet)
    return sheet


def _check_form(sheet: Sheet) -> None:
    """Refuse bad names of columns, and rows of another length than the header."""
    header = sheet.header
    file = sheet.path.name
    for at, name in enumerate(header):
        if not name or not name.isprintable():
            field = f"{file} line 1, name of column {at + 1}"
            remedy = "name the column, or leave it out"
            raise BadValue(field, repr(name), "must be printable and not empty", remedy)
        if name in header[:at]:
            rule = "is the name of two columns"
            raise BadValue(f"{file} line 1, column", repr(name), rule, "rename one of them")
    for line, row in zip(sheet.lines, sheet.rows, strict=True):
        if len(row) != len(header):
            rule = f"must be {len(header)}, as in the header"
            remedy = "check for commas without quotes"
            raise BadValue(f"{file} line {line}, number of values", len(row), rule, remedy)


def columns(config: DataConfig, sheet: Sheet, task: Task) -> tuple[str, ...]:
    """The feature columns, in order. Names in the config that are not columns are refused."""
    special = [("data.label", config.label)]
    special += [("data.client_column", config.client_column)] if config.client_column else []
    special += [("data.person", config.person)] if config.person else []
    for field, name in special + [("data.columns", name) for name in config.columns]:
        if name not in sheet.header:
            rule = f"is not a column of {sheet.path.name}"
            raise BadValue(field, repr(name), rule, _meant(name, sheet.header))
    reserved: dict[str, str] = {}
    for field, name in special:
        if name in reserved:
            rule = "is also the label" if name == config.label else f"is also {reserved[name]}"
            raise BadValue(field, repr(name), rule, "name another column")
        reserved[name] = field
    for at, name in enumerate(config.columns):
        if name in reserved or name in config.columns[:at]:
            rule = "is the column of the label, the client or the person" if name in reserved else "is listed twice"
            raise BadValue("data.columns", repr(name), rule, "remove it from the list")
    features = config.columns or tuple(name for name in sheet.header if name not in reserved)
    if not features:
        rule = f"leaves no feature column in {sheet.path.name}"
        raise BadValue("data.columns", "()", rule, "add a column")
    _check_settings(config, features, task)
    return features


def _check_settings(config: DataConfig, features: Sequence[str], task: Task) -> None:
    """Refuse settings of columns that are not features, and ranges or constants of text columns."""
    label = {config.label} if task.kind == "regression" else set()
    for table, others in (("ranges", {EVERY} | label), ("missing", {EVERY}), ("categories", set[str]())):
        settings = getattr(config, table)
        for name, value in settings.items():
            if name not in features and name not in others:
                rule = "is not about a feature column"
                raise BadValue(key(table, name), value, rule, _meant(name, features))
            if table != "categories" and name in config.categories:
                rule = f"cannot be used with {key('categories', name)}"
                remedy = "leave it out: a text column has only a list of values"
                raise BadValue(key(table, name), value, rule, remedy)


def _meant(name: str, known: Sequence[str]) -> str:
    if len(known) == 1 and any(mark in known[0] for mark in ";\t|"):
        return "separate the columns of the file by commas"
    near = get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = " …" if len(known) > MOST_NAMES else ""
    return f"there are {', '.join(map(repr, known[:MOST_NAMES]))}{more}"


def records(config: DataConfig, sheet: Sheet, features: Sequence[str], task: Task) -> Records:
    """The records of the file as numbers, encoded by the public settings of each column."""
    encoded = [_encoded(config, sheet, name) for name in features]

    def place(i: int) -> str:
        return sheet.place(i, config.label)

    y = labels.from_texts(sheet.column(config.label), task, config, place)
    persons = None
    if config.person:
        persons = from_texts(sheet.column(config.person), lambda i: sheet.place(i, config.person))
    return Records(torch.from_numpy(np.concatenate(encoded, axis=1)), y, persons)


def _encoded(config: DataConfig, sheet: Sheet, name: str) -> np.ndarray:
    texts = sheet.column(name)
    if name in config.categories:
        return _one_hot(config.categories[name], texts, sheet, name)
    constant = constant_of(config.missing, name)
    span = range_of(config.ranges, name)
    values = np.empty(len(texts))
    for i, text in enumerate(texts):
        values[i] = _number(text, constant, i, sheet, name)
    with np.errstate(over="ignore"):  # an overflow is refused below
        single = (values if span is None else scaled(values, span)).astype(np.float32)
    if not np.isfinite(single).all():
        at = int(np.argmin(np.isfinite(single)))
        remedy = f"set its range in {key('ranges', name)}"
        raise BadValue(sheet.place(at, name), texts[at], "does not fit a 32-bit float", remedy)
    return single[:, None]


def _number(text: str, constant: float | None, i: int, sheet: Sheet, name: str) -> float:
    if is_missing(text):
        if constant is None:
            remedy = f"fill it in, or set {key('missing', name)} to a constant that replaces it"
            raise BadValue(sheet.place(i, name), repr(text), "is a missing value", remedy)
        return constant
    value = as_number(text)
    if value is None:
        remedy = f"list the values of a text column in {key('categories', name)}, or leave it out with data.columns"
        raise BadValue(sheet.place(i, name), repr(text), "must be a number", remedy)
    if not np.isfinite(value):
        remedy = "correct it, or leave the cell empty for a missing value"
        raise BadValue(sheet.place(i, name), text, "must be finite", remedy)
    return value


def _one_hot(listed: Sequence[str], texts: Sequence[str], sheet: Sheet, name: str) -> np.ndarray:
    """One 0/1 column for each listed value. An empty text counts as a value if it is listed."""
    if not listed or len(set(listed)) < len(listed):
        rule = "must list at least one value, and each once"
        raise BadValue(key("categories", name), list(listed), rule, "correct the list")
    position = {text: at for at, text in enumerate(listed)}
    encoded = np.zeros((len(texts), len(listed)), dtype=np.float32)
    for i, text in enumerate(texts):
        if text not in position:
            rule = f"must be one of {key('categories', name)}"
            remedy = "correct it, or add it to the list"
            raise BadValue(sheet.place(i, name), repr(text), rule, remedy)
        encoded[i, position[text]] = 1
    return encoded
