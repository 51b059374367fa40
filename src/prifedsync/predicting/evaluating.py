"""Scores of a trained model on other records. They are computed without noise, and no guarantee covers them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data import Encoding, Task
from ..data.arrays import read as read_npz
from ..data.folder import files
from ..data.preprocessing import Preprocessing
from ..limits import RECORD, Unit
from ..metrics import GIVEN_METRIC, Metric, measured, metrics_of
from ..scores import Measured, about_scale
from ..values import NOT_GIVEN, BadValue
from .rows import Accepted, Given, Table, as_array, check_columns, from_array, from_table, table_of

if TYPE_CHECKING:
    from ..config import Config, DataConfig
    from .predictor import Predictor

NOT_COVERED = "these scores are computed from the records without noise: the guarantee of the run does not cover them"
Wanted = Metric | str | Sequence[Metric | str] | None  # metrics to score by; None: those of the run
ALL = "all"  # the name of the row for all records together


@dataclass(frozen=True)
class Part:
    """The records of one file or client, and the model's scores on them, by metric."""

    name: str
    records: int
    refused: int
    scores: Mapping[str, Measured]

    @property
    def score(self) -> float | None:
        """By the first metric; None where it is undefined."""
        return next(iter(self.scores.values())).value

    def as_json(self) -> dict[str, Any]:
        scores = {metric: asdict(score) for metric, score in self.scores.items()}
        return {"name": self.name, "records": self.records, "refused": self.refused, "scores": scores}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model's scores on other records.

    model     "global", or the client whose model it is.
    metrics   what the scores are called.
    parts     one for each file, or for each client of a file with a client column.
    together  all records as one.
    refusals  why rows were left out.
    unit      what the intervals resample: records, or whole persons.
    note      what a score is measured in, where that is not plain.
    """

    model: str
    metrics: tuple[str, ...]
    parts: tuple[Part, ...]
    together: Part
    refusals: tuple[BadValue, ...]
    unit: Unit = RECORD
    note: str = ""
    sentence: str = NOT_COVERED

    def as_json(self) -> dict[str, Any]:
        shown = [part.as_json() for part in self.parts]
        said = {"model": self.model, "metrics": self.metrics, "parts": shown, "together": self.together.as_json()}
        return said | {"refused": [str(reason) for reason in self.refusals], "note": self.note, "sentence": self.sentence}


@dataclass(frozen=True, eq=False)
class Labelled:
    """Records with labels, as one file or client holds them."""

    name: str
    records: Accepted
    y: Tensor  # [accepted]
    persons: np.ndarray | None = None  # whose each accepted record is, where the table says so


def evaluation(predictor: Predictor, data: Given, model: str, given: Wanted = None) -> Evaluation:
    """The scores of a model on labelled records. Rows that the rules refuse are left out and counted."""
    rules = predictor.preprocessing
    metrics = _metrics(predictor.config, rules.label.task, given)
    held = [part for part in _labelled(data, rules, predictor.config.data) if part.records.count]
    if not any(len(part.y) for part in held):
        reasons = [reason for part in held for reason in part.records.refused.values()]
        rule = f"has no record that can be scored; the first refusal is: {reasons[0]}" if reasons else "holds no records"
        raise BadValue("data", data if isinstance(data, (str, Path)) else NOT_GIVEN, rule, "give labelled records")
    outputs = predictor.outputs(torch.cat([part.records.x for part in held]))
    y = torch.cat([part.y for part in held])
    seed = predictor.config.seed
    groups = _groups(held)
    found = measured(metrics, outputs, y, [len(part.y) for part in held], seed=seed, groups=groups)
    parts = [_part(part.name, [part], {each.metric: each.clients[at] for each in found}) for at, part in enumerate(held)]
    together_groups = None if groups is None else [np.concatenate(groups)]
    all_records = measured(metrics, outputs, y, [len(y)], seed=seed, groups=together_groups)
    together = _part(ALL, held, {each.metric: each.clients[0] for each in all_records})
    refusals = tuple(reason for part in held for reason in part.records.refused.values())
    names = tuple(each.name for each in metrics)
    unit: Unit = RECORD if groups is None else "person"
    return Evaluation(model, names, tuple(parts), together, refusals, unit, about_scale(names, rules.label.span))


def _groups(held: Sequence[Labelled]) -> list[np.ndarray] | None:
    """Whose each record is, by number: rows of one person are no independent observations."""
    ids = [part.persons for part in held]
    if any(each is None for each in ids):
        return None
    known = [each for each in ids if each is not None]
    _, numbers = np.unique(np.concatenate(known), return_inverse=True)
    return np.split(numbers, np.cumsum([len(each) for each in known])[:-1])


def _metrics(config: Config, task: Task, given: Wanted) -> tuple[Metric, ...]:
    """The metrics that were given, or those of the run. Code that a run folder names is not imported by itself."""
    if given is None:
        for name in config.metrics:
            if ":" in name:
                rule = "is your own code, and code that a run folder names is not imported by itself"
                raise BadValue("a metric of this run", name, rule, "give it: --metrics module:function, or metrics=…")
        given = config.metrics
    wanted = [given] if isinstance(given, (str, Metric)) else list(given)
    names = [each if isinstance(each, str) else GIVEN_METRIC for each in wanted]
    config.changed(metrics=names)  # refuses what a training refuses
    metrics = metrics_of(names, task.kind, [each for each in wanted if not isinstance(each, str)])
    for metric in metrics:
        metric.check(task.kind, task.outputs)
    return metrics


def _part(name: str, held: Sequence[Labelled], scores: Mapping[str, Measured]) -> Part:
    records = sum(len(part.y) for part in held)
    refused = sum(len(part.records.refused) for part in held)
    return Part(name, records, refused, scores)


# ---------------------------------------------------------------------- records with labels


def _labelled(data: Given, rules: Preprocessing, config: DataConfig) -> Iterator[Labelled]:
    is_table = isinstance(rules.encoding, Encoding)
    if not isinstance(data, (str, Path)):
        yield _table(ALL, table_of(data, rules), rules, config.person) if is_table else _pair(data, rules)
        return
    ending = ".csv" if is_table else ".npz"
    found = files(replace(config, path=str(data), client_column="", partition="iid"), ending)
    for name, path in (found if isinstance(found, Mapping) else {Path(found).stem: found}).items():
        if not is_table:
            yield _arrays(name, read_npz(path), rules)
            continue
        table = table_of(path, rules)
        if config.client_column in table.columns and not isinstance(found, Mapping):
            yield from _by_client(table, config, rules)
        else:
            yield _table(name, table, rules, config.person)


def _by_client(table: Table, config: DataConfig, rules: Preprocessing) -> Iterator[Labelled]:
    """One file with all clients: a part for each."""
    owners = np.array([str(owner) for owner in table.columns[config.client_column]])
    for owner in sorted(set(owners.tolist())):
        rows = np.flatnonzero(owners == owner).tolist()
        mine = {name: [cells[i] for i in rows] for name, cells in table.columns.items()}

        def place(row: int, name: str, rows: list[int] = rows) -> str:
            return table.place(rows[row], name)

        yield _table(owner, Table(table.name, mine, place), rules, config.person)


def _table(name: str, table: Table, rules: Preprocessing, person: str) -> Labelled:
    encoding = rules.encoding
    assert isinstance(encoding, Encoding)
    check_columns(table, (*encoding.names, encoding.label.name))
    records = from_table(table, encoding)
    cells = table.columns[encoding.label.name]
    rows = records.rows.tolist()

    def place(row: int, column: str) -> str:
        return table.place(rows[row], column)

    ids = np.array([str(table.columns[person][i]) for i in rows]) if person in table.columns else None
    return Labelled(name, records, encoding.encode_labels([cells[i] for i in rows], place), ids)


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
