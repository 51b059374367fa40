"""The books as the entries have them, and whether the tables beside the entries say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...values import BadValue
from . import schema
from .chain import Chain, Entry, damaged, digest
from .protected import Protected
from .runs import COLUMNS, Run, after, carried, reserved

SELECT_RUNS = f"SELECT {', '.join(COLUMNS)} FROM runs"

REPLY = "number, question, status, queries, scores, body"  # columns of a reply, after its slot
NO_SCORES = "{}"  # what is left of the scores when a body is dropped, without which they have no digest


@dataclass(frozen=True)
class Base:
    """What was spent before the runs that are counted: at the beginning, or carried over after a loss."""

    amount: float
    alone: bool
    after_loss: bool = False  # something may have been asked that nobody knows of


UNTOUCHED = Base(0.0, alone=False)


@dataclass(frozen=True)
class Amounts:
    """The amounts of a filter, added up over runs that were not carried over.

    alone_open   a run that has the whole budget may still be asked; `alone_asked`: one was asked
    untouched    nothing was ever asked, and no run is open
    """

    spent: float
    reserved: float
    alone_open: bool
    alone_asked: bool
    untouched: bool

    @property
    def alone(self) -> bool:
        """Whether one run has the whole budget."""
        return self.alone_open or self.alone_asked


def amounts_of(base: Base, runs: Sequence[Run]) -> Amounts:
    """What these runs have spent and reserved. Counts are multiplied, so nothing drifts over many slots."""
    shared = [run for run in runs if not run.alone]
    alone = [run for run in runs if run.alone]
    asked = any(run.asked or run.spare for run in runs)
    return Amounts(
        spent=math.fsum([base.amount, *(run.spent for run in shared)]),
        reserved=math.fsum(run.reserved for run in shared),
        alone_open=any(run.open for run in alone),
        alone_asked=base.alone or any(run.asked or run.spare for run in alone),
        untouched=not (asked or any(run.open for run in runs)) and base == UNTOUCHED,
    )


@dataclass
class Books:
    """All that follows from the entries."""

    source: str
    unit: str
    order: float | None
    protected: Protected
    base: Base
    version: int  # of the schema
    runs: dict[str, Run] = field(default_factory=dict)
    charged: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # number of an entry → its body

    def add(self, entry: Entry) -> None:
        """One more entry."""
        body = entry.body
        if entry.kind == "upgraded":
            self.version = body["version"]
        elif entry.kind == "carried":
            self.base = Base(body["spent"], body["alone"], after_loss=True)
            self.runs = {name: carried(run) for name, run in self.runs.items()}
        elif entry.kind == "reserved":
            self.runs[body["run"]] = reserved(entry)
        else:
            self.runs[body["run"]] = after(self.runs[body["run"]], entry)
            if entry.kind == "charged":
                self.charged[entry.number] = body


def replayed(entries: Iterable[Entry]) -> Books:
    """The books after these entries."""
    first, *rest = entries
    if first.kind != "created":
        raise ValueError(first.kind)
    body = first.body
    base = Base(body["spent"], body["alone"])
    books = Books(body["source"], body["unit"], body["order"], Protected(**body["protected"]), base, body["version"])
    for entry in rest:
        books.add(entry)
    return books


def checked_books(chain: Chain) -> Books:
    """The books of a file whose entries, tables and triggers are as they were written."""
    version = schema.version_of(chain.sql)
    if version < schema.VERSION:
        rule = f"has schema version {version}, and this program reads version {schema.VERSION}"
        remedy = "a command that writes brings it up to date, such as `prifedsync ledger anchor POLICY`"
        raise BadValue("ledger", chain.path, rule, remedy)
    if schema.shape(chain.sql) != schema.expected_shape():
        raise damaged(chain.path, "its tables or triggers were changed")
    try:
        books = replayed(chain.entries())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(chain.path, f"an entry cannot be read ({error!r})") from None
    if books.version != version:
        raise damaged(chain.path, "its schema version was changed")
    rows = {row[0]: Run(*row) for row in chain.sql.execute(SELECT_RUNS)}
    if rows != books.runs:
        raise damaged(chain.path, "the table of runs does not say what the entries say")
    return books


def upgraded(chain: Chain) -> None:
    """Bring an older file to this version of the schema, with an entry that says so. A newer one is refused."""
    with chain.reading():
        version = schema.version_of(chain.sql)
    if version == schema.VERSION or chain.readonly:
        return
    with chain.writing():
        version = schema.version_of(chain.sql)
        if version < schema.VERSION:  # no other process was faster
            schema.upgrade(chain.sql, version)
            chain.append("upgraded", {"version": schema.VERSION})


def is_charged(entry: Mapping[str, Any], slot: tuple[str, int, int], reply: Sequence[Any]) -> bool:
    """Whether a row of the table of replies is what its entry charged. Of a closed run body and scores are gone."""
    _, question, status, queries, scores, body = reply
    if not (isinstance(question, bytes) and isinstance(scores, str) and isinstance(body, bytes | None)):
        return False
    said = (*slot, question.hex(), status, queries)
    told = tuple(entry.get(name) for name in ("run", "round", "attempt", "question", "status", "queries"))
    if body is None:
        return said == told and scores == NO_SCORES
    return said == told and digest(body, scores.encode()).hex() == entry.get("reply")
