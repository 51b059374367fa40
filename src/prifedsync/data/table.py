"""CSV files: a header, a column with the label, and columns of numbers or of listed texts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue
from . import labels
from .federation import Federation, Records, Task
from .folder import files, unreadable
from .partition import divided, federated, taken
from .scale import EVERY, constant_of, key, range_of, scaled
from .text import as_number, is_missing

if TYPE_CHECKING:
    from ..config import DataConfig


@dataclass(frozen=True)
class Sheet:
    """A file's rows, each with its line, and whose they are (nobody's yet if the file is to be split)."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    owners: Sequence[str] = ()

    def column(self, name: str) -> list[str]:
        at = self.header.index(name)
        return [row[at] for row in self.rows]

    def place(self, i: int, column: str) -> str:
        """Where a value stands, in words."""
        whose = f"client {self.owners[i]!r}, " if self.owners else ""
        return f"{whose}{self.path.name} line {self.lines[i]}, column {column!r}"


def from_csv(config: DataConfig, task: Task, seed: int) -> Federation:
    """The federation in one file a client, or in one file for all."""
    found = files(config, ".csv")
    if not isinstance(found, Path):
        return federated(config, _one_file_each(config, task, found), task, seed)
    sheet = read(found)
    features = columns(config, sheet, task)
    if not config.client_column:
        return divided(config, records(config, sheet, features, task), task, seed)
    owners = sheet.column(config.client_column)
    for i, owner in enumerate(owners):
        if is_missing(owner):
            raise BadValue(sheet.place(i, config.client_column), repr(owner), "must name a client", "fill it in")
    everybody = records(config, Sheet(sheet.path, sheet.header, sheet.rows, sheet.lines, owners), features, task)
    rows = np.array(owners)
    clients = {name: taken(everybody, np.flatnonzero(rows == name)) for name in sorted(set(owners))}
    return federated(config, clients, task, seed)


def _one_file_each(config: DataConfig, task: Task, found: dict[str, Path]) -> dict[str, Records]:
    first: Sheet | None = None
    features: tuple[str, ...] = ()
    clients = {}
    for name, path in found.items():
        sheet = read(path, owner=name)
        if first is None:
            first, features = sheet, columns(config, sheet, task)
        wanted = {*features, config.label} if config.columns else set(first.header)
        there = set(sheet.header) & wanted if config.columns else set(sheet.header)
        if there != wanted:
            differs = [f"without {c!r}" for c in sorted(wanted - there)] + [f"with {c!r}" for c in sorted(there - wanted)]
            rule = f"must have the same columns as {first.path.name}"
            remedy = "give all files the same, or list those to learn from in data.columns"
            raise BadValue(f"client {name!r}, columns of {path.name}", ", ".join(differs), rule, remedy)
        clients[name] = records(config, sheet, features, task)
    return clients


def read(path: Path, owner: str = "") -> Sheet:
    """The file as texts without surrounding blanks; empty lines are left out."""
    rows, lines = [], []
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
        raise unreadable(path, f"line {reader.line_num}: {error}", "check the quotes there") from None
    except OSError as error:
        raise unreadable(path, str(error.strerror)) from None
    if not header:
        raise unreadable(path, "its first line is empty", "write the columns' names there")
    for at, name in enumerate(header):
        if not name or not name.isprintable():
            field = f"{path.name} line 1, name of column {at + 1}"
            raise BadValue(field, repr(name), "must be printable and not empty", "name the column, or leave it out")
        if name in header[:at]:
            raise BadValue(f"{path.name} line 1, column", repr(name), "is there twice", "rename one of them")
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            rule = f"must be the {len(header)} of the header"
            raise BadValue(f"{path.name} line {line}, number of values", len(row), rule, "check for commas without quotes")
    return Sheet(path, header, rows, lines, [owner] * len(rows) if owner else ())


def columns(config: DataConfig, sheet: Sheet, task: Task) -> tuple[str, ...]:
    """The columns to learn from, in order; refuses names in the config that are not columns."""
    special = [("data.label", config.label)]
    special += [("data.client_column", config.client_column)] if config.client_column else []
    for field, name in special + [("data.columns", name) for name in config.columns]:
        if name not in sheet.header:
            raise BadValue(field, repr(name), f"is not a column of {sheet.path.name}", _meant(name, sheet.header))
    if config.label == config.client_column:
        raise BadValue("data.client_column", repr(config.label), "is the label too", "name another column")
    taken_names = {name for _, name in special}
    for at, name in enumerate(config.columns):
        if name in taken_names or name in config.columns[:at]:
            why = "is the label or the client" if name in taken_names else "is listed twice"
            raise BadValue("data.columns", repr(name), why, "take it off the list")
    features = config.columns or tuple(name for name in sheet.header if name not in taken_names)
    if not features:
        raise BadValue("data.columns", "()", f"leaves nothing to learn from in {sheet.path.name}", "add a column")
    ranged = {config.label} if task.kind == "regression" else set()
    for table, more in (("ranges", {EVERY} | ranged), ("missing", {EVERY}), ("categories", set[str]())):
        given = getattr(config, table)
        for name in given:
            if name not in features and name not in more:
                rule = "is not about a column that is learnt from"
                raise BadValue(key(table, name), given[name], rule, _meant(name, features))
            if table != "categories" and name in config.categories:
                rule = f"cannot go with {key('categories', name)}"
                raise BadValue(key(table, name), given[name], rule, "a text column takes only its list of values")
    return features


def _meant(name: str, known: Sequence[str]) -> str:
    if len(known) == 1 and any(mark in known[0] for mark in ";\t|"):
        return "the file must separate columns by commas"
    near = get_close_matches(name, known, 1)
    return (
        f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known[:12]))}" + " …" * (len(known) > 12)
    )


def records(config: DataConfig, sheet: Sheet, features: Sequence[str], task: Task) -> Records:
    """The file's records as numbers, by the public rules of each column."""
    encoded = [_encoded(config, sheet, name) for name in features]
    y = labels.from_texts(sheet.column(config.label), task, config, lambda i: sheet.place(i, config.label))
    return Records(torch.from_numpy(np.concatenate(encoded, axis=1)), y)


def _encoded(config: DataConfig, sheet: Sheet, name: str) -> np.ndarray:
    texts = sheet.column(name)
    if name in config.categories:
        return _one_hot(config.categories[name], texts, sheet, name)
    constant = constant_of(config.missing, name)
    span = range_of(config.ranges, name)
    values = np.empty(len(texts))
    for i, text in enumerate(texts):
        values[i] = _number(text, constant, i, sheet, name)
    with np.errstate(over="ignore"):  # refused in the next lines
        single = (values if span is None else scaled(values, span)).astype(np.float32)
    if not np.isfinite(single).all():
        at = int(np.argmin(np.isfinite(single)))
        raise BadValue(
            sheet.place(at, name), texts[at], "does not fit a 32-bit float", f"give its range in {key('ranges', name)}"
        )
    return single[:, None]


def _number(text: str, constant: float | None, i: int, sheet: Sheet, name: str) -> float:
    if is_missing(text):
        if constant is None:
            remedy = f"fill it in, or give {key('missing', name)} a constant that stands for it"
            raise BadValue(sheet.place(i, name), repr(text), "is a missing value", remedy)
        return constant
    value = as_number(text)
    if value is None:
        remedy = f"list the values of a text column in {key('categories', name)}, or leave it out with data.columns"
        raise BadValue(sheet.place(i, name), repr(text), "must be a number", remedy)
    if not np.isfinite(value):
        raise BadValue(sheet.place(i, name), text, "must be finite", "correct it, or leave it empty as a missing value")
    return value


def _one_hot(listed: Sequence[str], texts: Sequence[str], sheet: Sheet, name: str) -> np.ndarray:
    """One 0/1 column a listed value; an empty text is a value like any other, if it is listed."""
    if not listed or len(set(listed)) < len(listed):
        raise BadValue(key("categories", name), list(listed), "must list values, each once")
    number = {text: at for at, text in enumerate(listed)}
    encoded = np.zeros((len(texts), len(listed)), dtype=np.float32)
    for i, text in enumerate(texts):
        if text not in number:
            rule = f"must be one of {key('categories', name)}"
            raise BadValue(sheet.place(i, name), repr(text), rule, "correct it, or list it there")
        encoded[i, number[text]] = 1
    return encoded
