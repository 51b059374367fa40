"""CSV files: a header, a column of labels, and columns with public rules, from one file per client or one for all."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue
from .encoding import Encoding
from .federation import Federation, Records, Task
from .folder import files, refuse_duplicates
from .near import meant
from .notes import cut_values
from .partition import divided, federated, subset
from .persons import from_texts
from .scale import EVERY, key
from .sheet import Sheet, read
from .text import as_number, is_missing

if TYPE_CHECKING:
    from ..config import DataConfig

MOST_NAMES = 12  # that an error message lists


def from_csv(config: DataConfig, task: Task, seed: int) -> Federation:
    """The federation in one file per client, or in one file for all clients."""
    paths = files(config, ".csv")
    if isinstance(paths, Path):
        return _one_file(config, task, paths, seed)
    sheets = {name: _rows(read(path, _separator(config), name), name) for name, path in paths.items()}
    pattern = _pattern(config, list(sheets.values()))
    for name, sheet in sheets.items():
        _check_alike(config, name, sheet, pattern)
    features = columns(config, pattern, task)
    alike = _alike(sheets)
    encoding = Encoding.of(config, features, task)
    clients = {}
    notes = {}
    for name, sheet in sheets.items():
        clients[name], outside = records(encoding, sheet, config.person)
        notes[name] = (*cut_values(encoding, outside), *alike.get(name, ()))
    return _federation(federated(config, clients, task, seed), encoding, notes)


def _one_file(config: DataConfig, task: Task, path: Path, seed: int) -> Federation:
    sheet = _rows(read(path, _separator(config)))
    encoding = Encoding.of(config, columns(config, sheet, task), task)
    if not config.client_column:
        pooled, outside = records(encoding, sheet, config.person)
        return _federation(divided(config, pooled, task, seed), encoding, {path.stem: cut_values(encoding, outside)})
    owners = sheet.column(config.client_column)
    for i, owner in enumerate(owners):
        if is_missing(owner):
            place = sheet.place(i, config.client_column)
            remedy = "fill in the name of the client"
            raise BadValue(place, repr(owner), "must name a client", remedy)
    pooled, outside = records(encoding, replace(sheet, owners=owners), config.person)
    owner_of = np.array(owners)
    rows = {name: np.flatnonzero(owner_of == name) for name in sorted(set(owners))}
    clients = {name: subset(pooled, mine) for name, mine in rows.items()}
    notes = {name: cut_values(encoding, outside[mine]) for name, mine in rows.items()}
    return _federation(federated(config, clients, task, seed), encoding, notes)


def _federation(federation: Federation, encoding: Encoding, notes: Mapping[str, tuple[str, ...]]) -> Federation:
    return replace(federation, encoding=encoding, notes={name: said for name, said in notes.items() if said})


def _separator(config: DataConfig) -> str:
    return "\t" if config.separator == "tab" else config.separator


def _rows(sheet: Sheet, client: str = "") -> Sheet:
    """The sheet, if it has rows."""
    if not sheet.rows:
        whose = f"client {client!r}, " if client else ""
        remedy = "the file has a header alone: add records, or take the file away"
        raise BadValue(f"{whose}rows of {sheet.path.name}", 0, "must be at least 1", remedy)
    return sheet


def _pattern(config: DataConfig, sheets: Sequence[Sheet]) -> Sheet:
    """The file that the others are compared with: the first of those with the most columns that the config names."""
    named = {config.label, config.person, *config.columns, *config.ranges, *config.categories, *config.missing}
    return max(sheets, key=lambda sheet: len(named.intersection(sheet.header)))


def _check_alike(config: DataConfig, client: str, sheet: Sheet, pattern: Sheet) -> None:
    """Refuse a file with other columns than that one."""
    wanted = set(pattern.header)
    if config.columns:
        wanted &= {*config.columns, config.label, config.person}
    present = set(sheet.header) & wanted if config.columns else set(sheet.header)
    if present == wanted:
        return
    lacking = sorted(wanted - present)
    extra = sorted(present - wanted)
    rule = f"must be the same as in {pattern.path.name}"
    remedy = "give all files the same columns, or list the features in data.columns"
    for name in lacking:
        renamed = meant(name, [other for other in sheet.header if other not in wanted])
        if renamed:
            remedy = f"rename {renamed!r} to {name!r} in {sheet.path.name}"
            break
    differences = ", ".join([f"without {name!r}" for name in lacking] + [f"with {name!r}" for name in extra])
    raise BadValue(f"client {client!r}, columns of {sheet.path.name}", differences, rule, remedy)


def _alike(sheets: Mapping[str, Sheet]) -> dict[str, tuple[str, ...]]:
    """Refuse the same file under two names. Where rows hardly differ, two tables may be equal by chance: a note then."""
    digests = {name: (sheet.path.name, _digest(sheet)) for name, sheet in sheets.items()}
    refuse_duplicates({name: each for name, each in digests.items() if _is_telling(sheets[name])})
    notes: dict[str, tuple[str, ...]] = {}
    first: dict[bytes, str] = {}
    for name, (file, digest) in digests.items():
        same = first.setdefault(digest, file)
        if same != file:
            notes[name] = (f"{file} has the same rows as {same}; if it is a copy, take one of the two files away",)
    return notes


def _is_telling(sheet: Sheet) -> bool:
    """Whether most rows occur once in the table, so that no other table is equal to it by chance."""
    counts = Counter(map(tuple, sheet.rows))
    return 2 * sum(count == 1 for count in counts.values()) > len(sheet.rows)


def _digest(sheet: Sheet) -> bytes:
    """The same for files with the same rows, whatever the order of rows and columns."""
    order = sorted(range(len(sheet.header)), key=sheet.header.__getitem__)
    rows = sorted([row[at] for at in order] for row in sheet.rows)
    header = [sheet.header[at] for at in order]
    return hashlib.sha256(json.dumps([header, *rows]).encode()).digest()


def columns(config: DataConfig, sheet: Sheet, task: Task) -> tuple[str, ...]:
    """The feature columns, in order. Names in the config that are not columns are refused."""
    special = [("data.label", config.label)]
    special += [("data.client_column", config.client_column)] if config.client_column else []
    special += [("data.person", config.person)] if config.person else []
    for field, name in special + [("data.columns", name) for name in config.columns]:
        if name not in sheet.header:
            rule = f"is not a column of {sheet.path.name}"
            raise BadValue(field, repr(name), rule, _remedy(name, sheet.header))
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
    """Refuse settings of columns that are not features, and a column with both a range and categories."""
    label = {config.label} if task.kind == "regression" else set()
    for table, others in (("ranges", {EVERY} | label), ("missing", {EVERY}), ("categories", set[str]())):
        for name, value in getattr(config, table).items():
            if name not in features and name not in others:
                rule = "is not about a feature column"
                raise BadValue(key(table, name), value, rule, _remedy(name, features))
            if table == "ranges" and name in config.categories:
                rule = f"cannot be used with {key('categories', name)}"
                raise BadValue(key(table, name), value, rule, "leave one of the two out")


def _remedy(name: str, known: Sequence[str]) -> str:
    near = meant(name, known)
    if near:
        return f"did you mean {near!r}?"
    if all(as_number(other) is not None for other in known):
        return "write the names of the columns in the first line: it holds only numbers"
    more = " …" if len(known) > MOST_NAMES else ""
    return f"there are {', '.join(map(repr, known[:MOST_NAMES]))}{more}"


def records(encoding: Encoding, sheet: Sheet, person: str = "") -> tuple[Records, np.ndarray]:
    """The records of the file as numbers, encoded by the public rules, and which values lie outside their range."""
    encoded = encoding.encode({name: sheet.column(name) for name in encoding.names}, sheet.place)
    x = torch.from_numpy(encoded.checked())
    y = encoding.encode_labels(sheet.column(encoding.label.name), sheet.place)
    persons = None
    if person:
        persons = from_texts(sheet.column(person), lambda i: sheet.place(i, person), encoding.decimal)
    return Records(x, y, persons), encoded.outside
