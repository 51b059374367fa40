"""The ledger of one source of records: what was reserved, charged and closed, and the replies that were charged.

Everything that changes is one transaction: an entry of the chain, and the tables that follow from the entries. Nothing may
leave before `charge` has returned: by then the transaction is on the disk, and the anchor beside it.

What is detected when a ledger is opened or verified: an edited or missing entry or row, a truncated or swapped file, and a
file that was rolled back behind the anchor. While it is open, each transaction checks that the ledger contains the last
head that this process has seen, and each one that writes, that it contains the anchor's head. Otherwise it is refused.

What is not detected: ledger and anchor rolled back together by somebody who may write both while no process has the ledger
open, before an asker echoes a later head (`knows`); a chain that such a person made anew; rows that were edited while the
ledger is open, until it is opened again; a carried state that was changed together with its checksum, since states are not
in the chain.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from ...accounting import Budget, PrivacyPlan
from ...asking.questions import Head
from ...asking.refusals import Refusal
from ...record import plan_as_json
from ...values import NOT_GIVEN, BadValue, number, whole
from . import schema
from .anchor import Anchor, changed_unit, not_behind
from .books import NO_SCORES, REPLY, SELECT_RUNS, Amounts, Base, Books, amounts_of, checked_books, is_charged, upgraded
from .chain import Chain, Entry, canonical, damaged, digest
from .copies import copy
from .protected import Protected
from .receipts import receipt_of
from .runs import COLUMNS, Run, Status, Stored, Totals, after, carried, reserved

DAY = 86400.0
MOST = 2**62  # of a round or an attempt: SQLite has 64 bits
NEW = "prifedsync ledger new POLICY"
AFTER_LOSS = f"{NEW} --after-loss"
Clock = Callable[[], float]
RECORDS = Protected()


def _create(
    path: Path, source: str, budget: Budget, protected: Protected, anchor: Path | None, spent: float, alone: bool
) -> None:
    if not source:
        raise BadValue("source.name", NOT_GIVEN, "must be set: the ledger is kept under it", "choose a name that will last")
    body = {
        "version": schema.VERSION,
        "source": source,
        "unit": budget.unit,
        "order": budget.order,
        "protected": asdict(protected),
        "spent": number("spent", spent, 0),
        "alone": alone,
        "time": time.time(),
    }
    Chain.make(path, "created", body)
    with Ledger.open_unanchored(path, source=source, budget=budget, protected=protected, anchor=anchor) as ledger:
        ledger.write_anchor()


def marks(row: Sequence[object]) -> str:
    """The question marks that stand for the values of a row."""
    return ", ".join("?" * len(row))


class Ledger:
    """An open ledger. The methods may be called from several threads, and several processes may have it open."""

    def __init__(self, chain: Chain, books: Books, budget: Budget, anchor: Path | None, clock: Clock = time.time) -> None:
        """Use `Ledger.open`, which checks what it opens."""
        self.source = books.source
        self.budget = budget.at(books.order)
        self.protected = books.protected
        self._chain = chain
        self._base = books.base
        self._anchor = anchor
        self._anchored = -1  # the last entry that the anchor is known to cover
        self._clock = clock
        self._guaranteed: dict[PrivacyPlan, bool] = {}  # whether the exact guarantee of a plan is within the budget

    # ------------------------------------------------------------------ making and opening

    @staticmethod
    def create(
        path: Path,
        *,
        source: str,
        budget: Budget,
        anchor: Path | None,
        protected: Protected = RECORDS,
        spent: float = 0.0,
    ) -> None:
        """A new ledger, which begins with this amount spent. Refused where there is one, or an anchor knows of one."""
        if path.exists():
            raise BadValue("ledger", path, "exists already", "a source of records has one ledger for ever")
        if anchor is not None and Anchor.read(anchor) is not None:
            rule = "knows of a ledger of this source"
            remedy = f"restore it; if it is lost for good, run `{AFTER_LOSS}`, which begins with all it had committed"
            raise BadValue("anchor", anchor, rule, remedy)
        _create(path, source, budget, protected, anchor, spent, alone=False)

    @staticmethod
    def create_after_loss(
        path: Path, *, source: str, budget: Budget, anchor: Path, protected: Protected = RECORDS
    ) -> Anchor:
        """A new ledger in the place of one that is lost. All that the anchor says was committed is spent."""
        lost = Anchor.read(anchor)
        if lost is None:
            raise BadValue("anchor", anchor, "does not exist, so nothing is known of a lost ledger", f"run `{NEW}`")
        lost.check(source, budget, protected)
        _create(path, source, budget.at(lost.order), protected, anchor, lost.committed, lost.alone)
        return lost

    @staticmethod
    def open(
        path: Path,
        *,
        source: str,
        budget: Budget,
        anchor: Path | None,
        protected: Protected = RECORDS,
        readonly: bool = False,
        clock: Clock = time.time,
    ) -> Ledger:
        """The ledger in a file, if it is the whole ledger of this source and promise, and is not behind its anchor."""
        named: dict[str, Any] = {"source": source, "budget": budget, "protected": protected, "anchor": anchor}
        ledger = Ledger.open_unanchored(path, **named, readonly=readonly, clock=clock)
        try:
            ledger.check_anchor()
            if not readonly:
                ledger._cover()  # entries that were committed when the power failed
        except BaseException:
            ledger.close_file()
            raise
        return ledger

    @staticmethod
    def open_unanchored(
        path: Path,
        *,
        source: str,
        budget: Budget,
        protected: Protected,
        anchor: Path | None,
        readonly: bool = False,
        clock: Clock = time.time,
    ) -> Ledger:
        """The ledger in a file, checked in itself and not against its anchor."""
        if not path.is_file():
            remedy = f"run `{NEW}`; if there was one before, restore a backup: prifedsync ledger restore POLICY FILE"
            raise BadValue("ledger", path, "does not exist", remedy)
        chain = Chain(path, readonly)
        try:
            upgraded(chain)
            with chain.reading():
                books = checked_books(chain)
            if books.source != source:
                rule = f"is the ledger of the source {books.source}, and the policy names {source}"
                raise BadValue("ledger", path, rule, "name the ledger of this source, or correct source.name")
            if books.unit != budget.unit:
                raise changed_unit(books.unit, budget)
            books.protected.check(protected)
        except BaseException:
            chain.close()
            raise
        return Ledger(chain, books, budget, anchor, clock)

    def close_file(self) -> None:
        """Let go of the file."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_file()

    @property
    def chain(self) -> Chain:
        """The entries, for whoever copies them."""
        return self._chain

    def check_anchor(self) -> None:
        """Refuse a ledger that does not contain what its anchor has seen."""
        with self._chain.reading():
            anchor = not_behind(self._chain, self._anchor)
        if anchor is not None:
            anchor.check(self.source, self.budget, self.protected)
            self._anchored = anchor.number

    def as_anchor(self) -> Anchor:
        """What an anchor of this ledger says now."""
        with self._chain.reading():
            head = self._chain.head()
            amounts = self._amounts()
        return Anchor(
            source=self.source,
            number=head.number,
            hash=head.hash.hex(),
            unit=self.budget.unit,
            order=self.budget.order,
            protected=self.protected,
            committed=math.fsum((amounts.spent, amounts.reserved)),
            alone=amounts.alone,
        )

    def write_anchor(self) -> None:
        """Write the anchor whatever it says now: of a ledger that is new, was restored, or was checked against it."""
        if self._anchor is None:
            return
        with self._chain.writing():
            self._write_anchor(self._anchor)

    def _write_anchor(self, path: Path) -> None:
        """The anchor of the head as it is now. A transaction keeps others from writing an older one afterwards."""
        anchor = self.as_anchor()
        anchor.write(path)
        self._anchored = anchor.number

    def _cover(self, number: int | None = None) -> None:
        """Make sure that the anchor covers an entry, by default the last one."""
        if self._anchor is not None and self._anchored < (self.head.number if number is None else number):
            with self._writing():
                self._write_anchor(self._anchor)

    # ------------------------------------------------------------------ what it says

    @property
    def head(self) -> Head:
        """The last entry."""
        with self._chain.reading():
            return self._chain.head()

    def knows(self, head: Head) -> bool:
        """Whether this head was once the end of this ledger. If not, somebody has seen entries that are missing here."""
        with self._chain.reading():
            return self._chain.hash_of(head.number) == head.hash

    def totals(self) -> Totals:
        """What was spent, what open runs may still spend, and what is left."""
        with self._chain.reading():
            found = self._amounts()
        limit = self.budget.limit
        if found.alone:
            spent, held = (limit, 0.0) if found.alone_asked else (0.0, limit)
            return Totals(limit, spent, held, 0.0, True)
        left = max(0.0, limit - found.spent - found.reserved)
        return Totals(limit, found.spent, found.reserved, left, False)

    def run(self, run: str) -> Run | None:
        """One run; None if it was never reserved."""
        with self._chain.reading():
            row = self._chain.sql.execute(f"{SELECT_RUNS} WHERE run = ?", (run,)).fetchone()
        return None if row is None else Run(*row)

    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order of their enrolment."""
        with self._chain.reading():
            return tuple(Run(*row) for row in self._chain.sql.execute(f"{SELECT_RUNS} ORDER BY rowid"))

    def document(self, run: str) -> str:
        """The document that the run was enrolled with."""
        with self._chain.reading():
            row = self._chain.sql.execute("SELECT text FROM documents WHERE run = ?", (run,)).fetchone()
            known = self._known(run)
        if row is None or digest(row[0].encode()) != known.text:
            raise damaged(self._chain.path, f"the document of the run {run} is missing or was changed")
        return str(row[0])

    def stored(self, run: str, round: int, attempt: int) -> Stored | None:
        """The reply of a slot that was charged; None if it was not. Whatever this returns may leave."""
        if not all(0 <= each < MOST for each in (round, attempt)):
            return None
        with self._chain.reading():
            found = self._stored(run, round, attempt)
        if found is not None:
            self._cover(found.head.number)
        return found

    def state(self, run: str) -> bytes | None:
        """What the run carries; None if nothing was charged yet, or the run is closed."""
        with self._chain.reading():
            row = self._chain.sql.execute("SELECT state, digest FROM states WHERE run = ?", (run,)).fetchone()
        if row is None:
            return None
        if digest(row[0]) != row[1]:
            raise damaged(self._chain.path, f"the state of the run {run} was changed")
        return bytes(row[0])

    def covers_next(self, run: str, attempt: int) -> bool:
        """Whether the budget covers one more slot of this run, a round or a further attempt.

        It does when the run is reserved. But the policy may have a lower budget by now, and that binds open runs too.
        """
        with self._chain.reading():
            return self._covers_next(self._known(run), attempt)

    # ------------------------------------------------------------------ what it does

    def reserve(
        self, run: str, *, document: bytes, text: str, plan: PrivacyPlan, by: str, queries: int | None = None
    ) -> bool:
        """Reserve all slots of a run. False: the budget does not cover it, and nothing has changed.

        A run that is open with the same document is reserved already: True, without an entry.

        queries  noisy ones in each reply: fewer than those of a round where a model that stays takes the others; None: all
        """
        cost = self.budget.cost(plan)
        most = plan.mechanism.queries_per_round
        whole("queries", most if queries is None else queries, 1, most)
        with self._writing():
            known = self.run(run)
            if known is None:
                alone = not self._fits(cost.of(plan.rounds, plan.attempts))
                if alone and not self._fits_alone(plan):
                    return False
                body = {
                    "run": run,
                    "document": document.hex(),
                    "text": digest(text.encode()).hex(),
                    "plan": plan_as_json(plan),
                    "by": by,
                    "time": self._clock(),
                    "queries": most if queries is None else queries,
                    "cost": [each if math.isfinite(each) else None for each in cost],
                    "alone": alone,
                }
                self._put(reserved(self._append("reserved", body)))
                self._chain.sql.execute("INSERT INTO documents VALUES (?, ?)", (run, text))
            elif known.document != document:
                raise BadValue("run", run, "is reserved with another document", "start a new run")
            elif not known.open:
                raise BadValue("run", run, "is closed", "start a new run")
        self._cover()
        return True

    def charge(
        self,
        run: str,
        round: int,
        attempt: int,
        *,
        question: bytes,
        status: Status,
        queries: int,
        body: bytes,
        scores: Mapping[str, float | None],
        state: bytes,
    ) -> Head:
        """Charge one slot, with the bytes that will leave and what the run carries on. They may leave once this returns."""
        whole("round", round, 0, MOST)
        whole("attempt", attempt, 0, MOST)
        said = canonical(dict(scores))
        with self._writing():
            known = self._known(run)
            refusal = known.refusal(round, attempt)
            if refusal is None and not self._covers_next(known, attempt):
                refusal = Refusal.BUDGET
            if refusal is not None:
                raise BadValue("slot", (run, round, attempt), f"cannot be charged: {refusal.value}")
            told = {
                "run": run,
                "round": round,
                "attempt": attempt,
                "question": question.hex(),
                "reply": digest(body, said.encode()).hex(),
                "status": status,
                "queries": known.checked_queries(status, queries),
            }  # and no time: when a training was ready may depend on records
            entry = self._append("charged", told)
            row = (run, round, attempt, entry.number, question, status, queries, said, body)
            self._chain.sql.execute(f"INSERT INTO replies VALUES ({marks(row)})", row)
            self._put(after(known, entry))
            self._put_state(run, state)
        self._cover(entry.number)
        return Head(entry.number, entry.hash)

    def keep(self, run: str, state: bytes) -> None:
        """What the run carries on, after models that stay were trained too. Nothing is charged, so there is no entry."""
        with self._writing():
            if not self._known(run).open:
                raise BadValue("run", run, "is closed", "start a new run")
            self._put_state(run, state)

    def close(self, run: str, why: str) -> None:
        """End a run. Slots that were not asked are released, unless it was alone; replies and states are dropped."""
        with self._writing():
            known = self._known(run)
            if not known.open:
                return
            self._put(after(known, self._append("closed", {"run": run, "why": why, "time": self._clock()})))
            self._drop(run)
        self._cover()
        self._chain.empty_log()

    def close_old(self, days: float) -> tuple[str, ...]:
        """End all runs that were enrolled more than so many days ago."""
        before = self._clock() - days * DAY
        old = tuple(run.run for run in self.runs() if run.open and run.begun < before)
        for run in old:
            self.close(run, f"it was enrolled more than {days:g} days ago")
        return old

    def note_late(self, run: str) -> None:
        """A reply of this run left later than the policy says."""
        with self._writing():
            known = self._known(run)
            self._put(after(known, self._append("late", {"run": run})))
        self._cover()

    # ------------------------------------------------------------------ copies and receipts

    def backup(self, to: Path) -> None:
        """A copy of the ledger as one file, taken while it is in use."""
        copy(self._chain, to)

    def carry_over(self, spent: float, alone: bool) -> tuple[str, ...]:
        """After entries were lost: end all runs, and begin again with this amount spent. The runs that were open."""
        with self._writing():
            self._append("carried", {"spent": spent, "alone": alone, "time": self._clock()})
            found = self.runs()
            for run in found:
                self._put(carried(run))
                self._drop(run.run)
        self._base = Base(spent, alone, after_loss=True)
        self._cover()
        return tuple(run.run for run in found if run.open)

    def receipt(self, run: str) -> dict[str, Any]:
        """What a run was charged, without data; `receipts.signed` signs it."""
        with self._chain.reading():
            known = self._known(run)
            head = self._chain.head()
        return receipt_of(known, self.source, head, self.budget)

    # ------------------------------------------------------------------ inside a transaction

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction on a ledger that contains what its anchor has seen."""
        with self._chain.writing():
            not_behind(self._chain, self._anchor)
            yield

    def _append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        head = self._chain.append(kind, body)
        return Entry(head.number, kind, body, head.hash)

    def _known(self, run: str) -> Run:
        known = self.run(run)
        if known is None:
            raise BadValue("run", run, "is not in the ledger", "`prifedsync owner status POLICY` lists the runs")
        return known

    def _put(self, run: Run) -> None:
        row = tuple(getattr(run, name) for name in COLUMNS)
        assigned = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
        text = f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({marks(row)}) ON CONFLICT (run) DO UPDATE SET {assigned}"
        self._chain.sql.execute(text, row)

    def _put_state(self, run: str, state: bytes) -> None:
        self._chain.sql.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (run, state, digest(state)))

    def _drop(self, run: str) -> None:
        self._chain.sql.execute(f"UPDATE replies SET body = NULL, scores = '{NO_SCORES}' WHERE run = ?", (run,))
        self._chain.sql.execute("DELETE FROM states WHERE run = ?", (run,))

    def _stored(self, run: str, round: int, attempt: int) -> Stored | None:
        text = f"SELECT {REPLY} FROM replies WHERE run = ? AND round = ? AND attempt = ?"
        row = self._chain.sql.execute(text, (run, round, attempt)).fetchone()
        if row is None:
            return None
        entry = self._chain.entry(row[0])
        if entry is None or not is_charged(entry.body, (run, round, attempt), row):
            raise damaged(self._chain.path, f"the reply of round {round}, attempt {attempt} of the run {run} was changed")
        _, question, status, queries, scores, body = row
        return Stored(question, body, Head(entry.number, entry.hash), status, queries, json.loads(scores))

    def _fits(self, amount: float) -> bool:
        """Whether the filter covers so much more."""
        found = self._amounts()
        return not found.alone and self.budget.covers(math.fsum((found.spent, found.reserved, amount)))

    def _fits_alone(self, plan: PrivacyPlan) -> bool:
        """Whether the plan may have the whole budget: nothing was ever asked, and no other run is open."""
        return self._amounts().untouched and self._within(plan)

    def _within(self, plan: PrivacyPlan) -> bool:
        """Whether the exact guarantee of the plan is within the budget. It may take seconds, so it is computed once."""
        if plan not in self._guaranteed:
            self._guaranteed[plan] = self.budget.fits_alone(plan)
        return self._guaranteed[plan]

    def _covers_next(self, run: Run, attempt: int) -> bool:
        """Whether what is spent stays within the budget with one more slot of this run."""
        if run.alone:
            return self._within(run.plan)
        slot = run.cost.of(*((0, 1) if attempt else (1, 0)))
        return self.budget.covers(math.fsum((self._amounts().spent, slot)))

    def _amounts(self) -> Amounts:
        return amounts_of(self._base, [Run(*row) for row in self._chain.sql.execute(f"{SELECT_RUNS} WHERE NOT carried")])
