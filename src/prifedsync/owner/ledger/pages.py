"""The ledger that a policy names, and what its owner is shown of it: the values behind every page and `--json`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ...accounting import Budget
from ...accounting.statement import finite
from ...values import BadValue
from ..policy import Policy
from .book import Ledger
from .protected import Protected
from .runs import Run


def budget_of(policy: Policy) -> Budget:
    """The budget of a policy."""
    return Budget(mu=policy.budget.mu, epsilon=policy.budget.epsilon, delta=policy.budget.delta)


def protected_of(policy: Policy) -> Protected:
    """What a policy promises."""
    source = policy.source
    rows = policy.data.rows_per_person if source.unit == "person" else None
    return Protected(source.unit, source.neighbours, source.holders, rows)


def kept_for(policy: Policy) -> dict[str, Any]:
    """What the ledger of a policy is made for, and opened for."""
    return {"source": policy.source.name, "budget": budget_of(policy), "protected": protected_of(policy)}


def open_ledger(policy: Policy, readonly: bool = False) -> Ledger:
    """The ledger of a policy, checked."""
    return Ledger.open(policy.path("ledger"), **kept_for(policy), anchor=policy.path("anchor"), readonly=readonly)


def status_of(policy: Policy) -> dict[str, Any]:
    """What was spent by whom, what is reserved and what is left; and whether the anchor agrees."""
    opened = Ledger.open_unanchored(
        policy.path("ledger"), **kept_for(policy), anchor=policy.path("anchor"), readonly=True
    )  # fmt: skip
    with opened as ledger:
        rows = [_row(run, ledger.budget) for run in ledger.runs()]
        return {**totals_of(ledger), "runs": rows, "anchor": _anchor(ledger, policy)}


def totals_of(ledger: Ledger) -> dict[str, Any]:
    """The budget, and how much of it is gone. `mu` and `epsilon` are upper bounds."""
    budget = ledger.budget
    totals = ledger.totals()
    head = ledger.head
    return {
        "source": ledger.source,
        "unit": budget.unit,
        "budget": budget.mu if budget.epsilon is None else budget.epsilon,
        "delta": None if budget.epsilon is None else budget.delta,
        "order": budget.order,
        "limit": totals.limit,
        "spent": totals.spent,
        "reserved": totals.reserved,
        "left": totals.left,
        "alone": totals.alone,
        f"{budget.unit}_spent": budget.spent_as(totals.spent),
        f"{budget.unit}_committed": budget.spent_as(totals.committed),
        "head": {"number": head.number, "hash": head.hash.hex()},
    }


def _row(run: Run, budget: Budget) -> dict[str, Any]:
    state = "carried over" if run.carried else "open" if run.open else "closed"
    return {
        "run": run.run,
        "by": run.by,
        "begun": time_of(run.begun),
        "state": f"{state}, alone" if run.alone else state,
        "why": run.why,
        "rounds_asked": run.asked,
        "rounds": run.rounds,
        "attempts_used": run.spare,
        "attempts": run.attempts,
        "queries": run.queries,
        "late": run.late,
        "spent": finite(run.spent),
        "reserved": finite(run.reserved),
        f"{budget.unit}_spent": None if run.alone else budget.spent_as(run.spent),
    }


def _anchor(ledger: Ledger, policy: Policy) -> dict[str, Any] | None:
    if policy.path("anchor") is None:
        return None
    try:
        ledger.check_anchor()
    except BadValue as reason:
        return {"agrees": False, "why": str(reason)}
    return {"agrees": True, "why": ""}


def entries_of(ledger: Ledger) -> list[dict[str, Any]]:
    """All entries, as whoever checks the chain needs them."""
    with ledger.chain.reading():
        return [
            {"number": entry.number, "kind": entry.kind, "body": dict(entry.body), "hash": entry.hash.hex()}
            for entry in ledger.chain.entries()
        ]


def time_of(seconds: float) -> str:
    """A time in words that sort."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
