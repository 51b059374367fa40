"""A row for each client: what it has, what it did, what it spent, and how well its models do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any

from ..accounting import Budget
from ..accounting.spending import ROUNDING
from ..accounting.statement import bracket
from ..config import ReportConfig
from ..fdp import Bound
from ..record import ClientRecord, RunRecord, plan_from_json
from ..values import BadValue
from .guarantee import Stated, stated
from .leaving import uploads_of
from .sources import Extra, Sources

SIGNATURE = "carries a signature, not checked here"
ROOM = 1e-6  # relative: a cost that is computed anew may differ so much from a ledger's


@dataclass(frozen=True)
class Spent:
    """What an owner's ledger says. Amounts are in the unit of its budget, "mu" or "epsilon", rounded up; left is down.

    agrees   whether the receipt is about this client's plan; `why` it is not
    before   what other runs have spent or reserved; None where the whole ledger was not given
    total    the same with this run
    older    whether the ledger was exported before the receipt, so that it may leave out later runs
    delta    at which a budget of ε counts
    others   whether other runs certainly have something of the budget
    """

    source: str
    unit: str
    agrees: bool
    why: str
    budget: float | None
    by_this_run: Stated | None
    before: Stated | None
    total: Stated | None
    left: float | None
    signature: str
    older: bool = False
    delta: float | None = None
    others: bool = False


@dataclass(frozen=True)
class ClientRow:
    """One client. `epsilon` and `mu` are those of the plan, `taken_epsilon` that of the slots that it took."""

    name: str
    records: int | None
    test_records: int | None
    rounds: int
    slots: int
    uploads: int
    noisy_queries: int
    noise_multiplier: float | None
    epsilon: Stated | None
    mu: Stated | None
    taken_epsilon: Stated | None
    spent: Spent | None
    answers: Mapping[str, int] | None
    scores: Mapping[str, float | None]
    gains: str


@dataclass(frozen=True)
class ClientTable:
    """All clients, receipts that belong to none of them, and ledgers of which nothing is in the table."""

    rows: tuple[ClientRow, ...]
    unit: str
    metric: str
    unmatched_receipts: tuple[str, ...]
    uncounted_ledgers: tuple[str, ...]
    without_ledger: int


def clients_of(sources: Sources, record: RunRecord) -> ClientTable:
    """The table of a finished run."""
    receipts = _receipts(sources, record)
    joining = {row.client: row.verdict for row in record.joining}
    answers = (record.deployment or {}).get("answers", {})
    rows = []
    for client in record.clients:
        receipt = receipts.get(client.name)
        spent = _spent(client, receipt, sources) if receipt else None
        row = _row(client, record.metric, uploads_of(record, client), spent, answers.get(client.name), joining[client.name])
        rows.append(row)
    matched = {receipt.sha256 for receipt in receipts.values()}
    counted = [row.spent.source for row in rows if row.spent is not None and row.spent.before is not None]
    return ClientTable(
        rows=tuple(rows),
        unit=record.unit,
        metric=record.metric,
        unmatched_receipts=tuple(each.name for each in sources.receipts if each.sha256 not in matched),
        uncounted_ledgers=tuple(each.name for each in sources.ledgers if each.holds.get("source") not in counted),
        without_ledger=sum(row.spent is None for row in rows),
    )


def _row(
    client: ClientRecord, metric: str, uploads: int, spent: Spent | None, answers: Mapping[str, int] | None, gains: str
) -> ClientRow:
    planned = client.planned
    scores = {model: by[metric].value for model, by in client.scores.items() if metric in by}
    return ClientRow(
        name=client.name,
        records=client.records,
        test_records=client.test_records,
        rounds=client.rounds_taken,
        slots=client.slots_taken,
        uploads=uploads,
        noisy_queries=client.noisy_queries,
        noise_multiplier=client.plan["noise_multiplier"] if client.plan else None,
        epsilon=stated(planned["epsilon"]["upper"]) if planned else None,
        mu=stated(planned["mu"]["upper"]) if planned else None,
        taken_epsilon=stated(client.taken["epsilon"]["upper"]) if client.taken else None,
        spent=spent,
        answers=answers,
        scores=scores,
        gains=gains,
    )


def says_none(words: ReportConfig) -> bool:
    """Whether the owner says that nothing else was released from the same records."""
    return words.other_releases.strip().rstrip(".").casefold() == "none"


def refuting(words: ReportConfig, rows: Iterable[ClientRow]) -> list[str]:
    """The clients whose ledgers have other runs, where the owner says that nothing else was released."""
    return [row.name for row in rows if says_none(words) and row.spent is not None and row.spent.others]


# ---------------------------------------------------------------------- ledgers


def _receipts(sources: Sources, record: RunRecord) -> dict[str, Extra]:
    """Whose each receipt is: the policy of its source says so, or the name of the source, or its plan."""
    names = [client.name for client in record.clients]
    owners = {policy.holds.get("source", {}).get("name"): policy.holds.get("client") for policy in sources.policies}
    found: dict[str, Extra] = {}
    for receipt in sources.receipts:
        source = str(receipt.holds.get("source", ""))
        guesses = [owners.get(source), source, source.partition("/")[0]]
        by_plan = [client.name for client in record.clients if client.plan == receipt.holds.get("plan")]
        if len(by_plan) == 1:
            guesses += by_plan
        whose = next((guess for guess in guesses if guess in names), None)
        if whose is not None:
            found.setdefault(whose, receipt)
    return found


def _spent(client: ClientRecord, receipt: Extra, sources: Sources) -> Spent:
    said = receipt.holds
    try:
        return _from_receipt(client, said, _ledger_of(said, sources))
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        remedy = "name a file that `prifedsync ledger export` wrote"
        raise BadValue("receipt", receipt.name, f"cannot be read: {error!r}", remedy) from None


def _from_receipt(client: ClientRecord, said: Mapping[str, Any], ledger: Mapping[str, Any] | None) -> Spent:
    why = _disagreement(client, said)
    charged = said["charged"]
    budget = _budget(ledger) if ledger else None
    amount = charged["amount"]
    return Spent(
        source=said["source"],
        unit=charged["unit"],
        agrees=not why,
        why=why,
        budget=ledger["budget"] if ledger else None,
        by_this_run=_as_budget(budget, amount),
        before=_as_budget(budget, _others(ledger, amount)),
        total=_as_budget(budget, _total(ledger, amount)),
        left=_left(ledger, budget),
        signature=SIGNATURE if "signature" in said else "none",
        older=_older(ledger, said),
        delta=ledger.get("delta") if ledger else None,
        others=_has_others(ledger, said),
    )


def _disagreement(client: ClientRecord, said: Mapping[str, Any]) -> str:
    """What a receipt and the record say differently of one client.

    A receipt that charges more than this run costs would take that away from what other runs have spent.
    """
    plan = plan_from_json(said["plan"])
    if client.plan is None or plan != plan_from_json(client.plan):
        return "the receipt is about another plan than the record"
    rounds, attempts = said["slots"]["rounds"], said["slots"]["attempts"]
    if rounds + attempts < client.slots_taken:
        return f"the ledger has charged {rounds + attempts} slots, and the record says that {client.slots_taken} were taken"
    if rounds > plan.rounds or attempts > plan.attempts:
        return f"the receipt charges {rounds + attempts} slots, which are more than the plan has"
    amount, most = said["charged"]["amount"], _in_unit(said["charged"]).cost(plan).of(rounds, attempts)
    if amount is not None and not amount <= (0 if isinf(most) else most * (1 + ROOM)):
        return f"the receipt charges {amount:g}, which is more than its slots cost"
    return ""


def _in_unit(charged: Mapping[str, Any]) -> Budget:
    """A budget in the unit of a receipt. What a run costs depends on nothing else of it."""
    return Budget(mu=1.0) if charged["unit"] == "mu" else Budget(epsilon=1.0, order=charged["order"])


def _older(ledger: Mapping[str, Any] | None, receipt: Mapping[str, Any]) -> bool:
    """Whether the ledger was exported before the receipt, or does not have all of what the receipt charges."""
    if ledger is None:
        return False
    amount = receipt["charged"]["amount"]
    whole = ledger.get("alone") or amount is None or ledger["spent"] + ledger["reserved"] >= amount * (1 - ROUNDING)
    return _entries(ledger) < _entries(receipt) or not whole


def _entries(export: Mapping[str, Any] | None) -> int:
    """How many entries the ledger had when this was exported; 0 where that is not said."""
    return int(((export or {}).get("head") or {}).get("number", 0))


def _ledger_of(said: Mapping[str, Any], sources: Sources) -> Mapping[str, Any] | None:
    """The ledger that a receipt is from, as it was last exported."""
    source, unit = said["source"], said["charged"]["unit"]
    same = [each.holds for each in sources.ledgers if (each.holds["source"], each.holds["unit"]) == (source, unit)]
    return max(same, key=_entries, default=None)


def _budget(ledger: Mapping[str, Any]) -> Budget:
    if ledger["unit"] == "mu":
        return Budget(mu=ledger["budget"])
    return Budget(epsilon=ledger["budget"], delta=ledger["delta"], order=ledger["order"])


def _as_budget(budget: Budget | None, amount: float | None) -> Stated | None:
    """An amount as the μ or ε that holds when so much was spent."""
    if budget is None or amount is None:
        return None
    return stated(bracket(Bound(0.0, budget.spent_as(amount)))["upper"])


def _others(ledger: Mapping[str, Any] | None, amount: float | None) -> float | None:
    """What all other runs have spent or reserved. What this run still reserves is counted with them."""
    if ledger is None or amount is None:
        return None
    return max(0.0, float(ledger["spent"]) + float(ledger["reserved"]) - amount)


def _has_others(ledger: Mapping[str, Any] | None, receipt: Mapping[str, Any]) -> bool:
    """Whether a ledger has more than this run. A run that is open may hold all of its plan; one that is alone holds all."""
    charged = receipt["charged"]
    own = charged["amount"]
    if ledger is None or own is None or charged.get("alone"):
        return False
    if receipt.get("open"):
        plan = plan_from_json(receipt["plan"])
        own = max(own, _in_unit(charged).cost(plan).of(plan.rounds, plan.attempts) * (1 + ROOM))
    return float(ledger["spent"]) + float(ledger["reserved"]) > float(own) * (1 + ROUNDING)


def _total(ledger: Mapping[str, Any] | None, amount: float | None) -> float | None:
    """What all runs have spent or reserved, and this one in any case."""
    if ledger is None or amount is None:
        return None
    return max(float(ledger["spent"]) + float(ledger["reserved"]), amount)


def _left(ledger: Mapping[str, Any] | None, budget: Budget | None) -> float | None:
    """What the budget still has room for, as μ or ε, rounded down: μ² adds up, and so does ρ of ε at one order."""
    if ledger is None or budget is None:
        return None
    left = max(0.0, min(float(ledger["left"]), budget.limit))
    if budget.mu is not None:
        return float(left**0.5 * (1 - 1e-12))
    assert budget.epsilon is not None
    return max(0.0, budget.epsilon - budget.spent_as(max(0.0, budget.limit - left)))
