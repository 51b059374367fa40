"""Scores of a trained model on other records. They are computed without noise, and no guarantee covers them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data import Encoding, Task
from ..data.arrays import read as read_npz
from ..data.folder import files
from ..data.preprocessing import Preprocessing
from ..metrics import GIVEN_METRIC, Metric, metric_of, scores
from ..values import NOT_GIVEN, BadValue
from .rows import Accepted, Given, Table, as_array, check_columns, from_array, from_table, table_of

if TYPE_CHECKING:
    from ..config import Config, DataConfig
    from .predictor import Predictor

NOT_COVERED = "these scores are computed from the records without noise: the guarantee of the run does not cover them"
ALL = "all"  # the name of the row for all records together


@dataclass(frozen=True)
class Part:
    """The records of one file or client, and the model's score on them; None where it is undefined."""

    name: str
    records: int
    refused: int
    score: float | None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model's scores on other records.

    model    "global", or the client whose model it is.
    metric   what the scores are called.
    parts    one for each file, or for each client of a file with a client column.
    together  all records as one.
    refusals  why rows were left out.
    note     what a score is measured in, where that is not plain.
    """

    model: str
    metric: str
    parts: tuple[Part, ...]
    together: Part
    refusals: tuple[BadValue, ...]
    note: str = ""
    sentence: str = NOT_COVERED

    def as_json(self) -> dict[str, Any]:
        shown = [vars(part) for part in self.parts]
        said = {"model": self.model, "metric": self.metric, "parts": shown, "together": vars(self.together)}
        return said | {"refused": [str(reason) for reason in self.refusals], "note": self.note, "sentence": self.sentence}


@dataclass(frozen=True, eq=False)
class Labelled:
    """Records with labels, as one file or client holds them."""

    name: str
    records: Accepted
    y: Tensor  # [accepted]


def evaluation(predictor: Predictor, data: Given, model: str, given: Metric | str | None = None) -> Evaluation:
    """The scores of a model on labelled records. Rows that the rules refuse are left out and counted."""
    rules = predictor.preprocessing
    metric = _metric(predictor.config, rules.label.task, given)
    held = [part for part in _labelled(data, rules, predictor.config.data) if part.records.count]
    if not any(len(part.y) for part in held):
        reasons = [reason for part in held for reason in part.records.refused.values()]
        rule = f"has no record that can be scored; the first refusal is: {reasons[0]}" if reasons else "holds no records"
        raise BadValue("data", data if isinstance(data, (str, Path)) else NOT_GIVEN, rule, "give labelled records")
    outputs = predictor.outputs(torch.cat([part.records.x for part in held]))
    y = torch.cat([part.y for part in held])
    found = scores(metric, outputs, y, [len(part.y) for part in held]).tolist()
    parts = [_part(part.name, [part], score) for part, score in zip(held, found, strict=True)]
    together = _part(ALL, held, scores(metric, outputs, y, [len(y)]).item())
    refusals = tuple(reason for part in held for reason in part.records.refused.values())
    return Evaluation(model, metric.name, tuple(parts), together, refusals, _note(rules, metric))


def _metric(config: Config, task: Task, given: Metric | str | None) -> Metric:
    """The metric that was given, or that of the run. Code that a run folder names is not imported by itself."""
    if given is None and ":" in config.metric:
        rule = "is your own code, and code that a run folder names is not imported by itself"
        raise BadValue("the metric of this run", config.metric, rule, "give it: --metric module:function, or metric=…")
    if given is None or isinstance(given, str):
        metric = metric_of(given or config.metric, task.kind)
    else:
        metric = metric_of(GIVEN_METRIC, task.kind, given)
    metric.check(task.kind, task.outputs)
    return metric


def _part(name: str, held: Sequence[Labelled], score: float) -> Part:
    records = sum(len(part.y) for part in held)
    refused = sum(len(part.records.refused) for part in held)
    return Part(name, records, refused, score if math.isfinite(score) else None)


def _note(rules: Preprocessing, metric: Metric) -> str:
    span = rules.label.span
    if span is None or metric.name != "rmse":
        return ""
    return f"rmse is that of the label scaled to [−1, 1], as in training; times {(span[1] - span[0]) / 2:g} it has its unit"


# ---------------------------------------------------------------------- records with labels


def _labelled(data: Given, rules: Preprocessing, config: DataConfig) -> Iterator[Labelled]:
    is_table = isinstance(rules.encoding, Encoding)
    if not isinstance(data, (str, Path)):
        yield _table(ALL, table_of(data, rules), rules) if is_table else _pair(data, rules)
        return
    ending = ".csv" if is_table else ".npz"
    found = files(replace(config, path=str(data), client_column="", partition="iid"), ending)
    for name, path in (found if isinstance(found, Mapping) else {Path(found).stem: found}).items():
        if not is_table:
            yield _arrays(name, read_npz(path), rules)
            continue
        table = table_of(path, rules)
        if config.client_column in table.columns and not isinstance(found, Mapping):
            yield from _by_client(table, config.client_column, rules)
        else:
            yield _table(name, table, rules)


def _by_client(table: Table, column: str, rules: Preprocessing) -> Iterator[Labelled]:
    """One file with all clients: a part for each."""
    owners = np.array([str(owner) for owner in table.columns[column]])
    for owner in sorted(set(owners.tolist())):
        rows = np.flatnonzero(owners == owner).tolist()
        mine = {name: [cells[i] for i in rows] for name, cells in table.columns.items()}

        def place(row: int, name: str, rows: list[int] = rows) -> str:
            return table.place(rows[row], name)

        yield _table(owner, Table(table.name, mine, place), rules)


def _table(name: str, table: Table, rules: Preprocessing) -> Labelled:
    encoding = rules.encoding
    assert isinstance(encoding, Encoding)
    check_columns(table, (*encoding.names, encoding.label.name))
    records = from_table(table, encoding)
    cells = table.columns[encoding.label.name]
    rows = records.rows.tolist()

    def place(row: int, column: str) -> str:
        return table.place(rows[row], column)

    return Labelled(name, records, encoding.encode_labels([cells[i] for i in rows], place))


def _pair(data: Given, rules: Preprocessing) -> Labelled:
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        rule = "must be (x, y): records and their labels, because this run was trained on arrays"
        raise BadValue("data", type(data).__name__, rule, "give the two arrays")
    return _arrays(ALL, {"x": as_array(data[0]), "y": as_array(data[1])}, rules)


def _arrays(name: str, held: Mapping[str, np.ndarray], rules: Preprocessing) -> Labelled:
    for part in ("x", "y"):
        if part not in held:
            raise BadValue(f"{name}, arrays", ", ".join(held), f"must include {part}", "write numpy.savez(file, x=x, y=y)")
    y = held["y"]
    if y.shape != held["x"].shape[:1]:
        raise BadValue(f"{name}, shape of y", y.shape, f"must be {held['x'].shape[:1]}", "give each record one label")
    records = from_array(held["x"], rules)
    mine = y[records.rows]

    def place(row: int) -> str:
        return f"{name}, label of record {records.rows[row]}"

    if rules.label.values or mine.dtype.kind not in "biuf":
        return Labelled(name, records, rules.label.from_texts([str(text).strip() for text in mine.tolist()], place))
    return Labelled(name, records, rules.label.from_numbers(mine.astype(np.float64), place))
