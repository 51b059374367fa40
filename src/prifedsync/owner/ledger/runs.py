"""What the entries of a ledger say about each run. A run follows from its entries alone: `after` is all there is to it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ...accounting import Cost, PrivacyPlan
from ...asking.questions import Head
from ...asking.refusals import Refusal
from ...record import plan_from_json
from ...values import BadValue
from .chain import Entry, canonical

Status = Literal["sent", "absent"]


@dataclass(frozen=True)
class Run:
    """One run of the ledger, as its row.

    asked    rounds that were charged; `spare`: further attempts that were charged
    alone    it has the whole budget, by its own exact guarantee
    carried  it was open when entries were lost: what it may have spent is in the amount that was carried over
    """

    run: str
    document: bytes  # its digest
    text: bytes = field(repr=False)  # the digest of the text that is stored
    plan_text: str = field(repr=False)
    by: str
    begun: float  # seconds since 1970
    rounds: int
    attempts: int
    reply_queries: int  # noisy ones in each reply
    round_cost: float
    spare_cost: float
    alone: bool
    asked: int = 0
    spare: int = 0
    last_round: int = -1  # of the slot that was charged last
    last_attempt: int = -1
    last_status: Status | Literal[""] = ""
    queries: int = 0
    late: int = 0
    open: bool = True
    why: str = ""  # it was closed
    carried: bool = False

    @property
    def plan_json(self) -> dict[str, Any]:
        """The public numbers of the plan."""
        return dict(json.loads(self.plan_text))

    @property
    def plan(self) -> PrivacyPlan:
        """The plan that was reserved."""
        return plan_from_json(self.plan_json)

    @property
    def cost(self) -> Cost:
        """What each slot is charged with."""
        return Cost(self.round_cost, self.spare_cost)

    @property
    def spent(self) -> float:
        """The amount of the slots that were charged, in the unit of the filter."""
        return self.cost.of(self.asked, self.spare)

    @property
    def reserved(self) -> float:
        """The amount of the slots that may still be asked."""
        return self.cost.of(self.rounds - self.asked, self.attempts - self.spare) if self.open else 0.0

    def checked_queries(self, status: Status, queries: int) -> int:
        """The noisy queries of a reply, if they are as reserved. Otherwise the noise is not that of the plan."""
        planned = self.reply_queries if status == "sent" else 0
        if queries != planned:
            raise BadValue("queries", queries, f"must be {planned} in a reply that is {status}, as reserved")
        return queries

    @property
    def first_round(self) -> int:
        """The first round that may still be asked."""
        return self.last_round + 1

    def refusal(self, round: int, attempt: int) -> Refusal | None:
        """Why this slot may not be charged, if it was not charged before; None if it may be."""
        if not self.open:
            return Refusal.CLOSED
        if attempt == 0:
            if round < self.first_round:
                return Refusal.ORDER
            return Refusal.BEYOND if max(round, self.asked) >= self.rounds else None
        if (round, attempt - 1) != (self.last_round, self.last_attempt) or self.last_status != "sent":
            return Refusal.ORDER
        return Refusal.BEYOND if self.spare >= self.attempts else None


@dataclass(frozen=True)
class Stored:
    """A reply that was charged. Its body is None once its run is closed."""

    question: bytes  # the digest of what was asked
    body: bytes | None = field(repr=False)
    head: Head
    status: Status
    queries: int
    scores: Mapping[str, float | None]


@dataclass(frozen=True)
class Totals:
    """Amounts in the unit of the budget's filter. `Budget.spent_as` says what μ or ε an amount stands for.

    alone: one run has the whole budget, so spent or reserved is all of it, and nothing is left.
    """

    limit: float
    spent: float
    reserved: float
    left: float
    alone: bool

    @property
    def committed(self) -> float:
        """What was spent, or may still be spent by open runs."""
        return self.spent + self.reserved


def reserved(entry: Entry) -> Run:
    """A run at its enrolment."""
    body = entry.body
    plan = body["plan"]
    round_cost, spare_cost = (math.inf if cost is None else cost for cost in body["cost"])  # JSON has no infinity
    return Run(
        run=body["run"],
        document=bytes.fromhex(body["document"]),
        text=bytes.fromhex(body["text"]),
        plan_text=canonical(plan),
        by=body["by"],
        begun=body["time"],
        rounds=plan["rounds"],
        attempts=plan["attempts"],
        reply_queries=body["queries"],
        round_cost=round_cost,
        spare_cost=spare_cost,
        alone=body["alone"],
    )


def after(run: Run, entry: Entry) -> Run:
    """The run after one more of its entries."""
    body = entry.body
    if entry.kind == "charged":
        spare = int(body["attempt"] > 0)
        return replace(
            run,
            asked=run.asked + 1 - spare,
            spare=run.spare + spare,
            last_round=body["round"],
            last_attempt=body["attempt"],
            last_status=body["status"],
            queries=run.queries + body["queries"],
        )
    if entry.kind == "late":
        return replace(run, late=run.late + 1)
    if entry.kind == "closed":
        return replace(run, open=False, why=body["why"])
    raise ValueError(entry.kind)


def carried(run: Run) -> Run:
    """The run after entries were lost: nobody knows which of its slots were answered, so no more are."""
    return replace(run, open=False, why=run.why or "entries were lost", carried=True)


COLUMNS = tuple(each.name for each in dataclasses.fields(Run))  # of the table of runs
