"""The anchor: a second file with the head of the ledger and what it has committed, on another disk or machine.

It is written after each commit and before anything leaves. So a ledger that does not contain the anchor's head was rolled
back, or is another one. Every transaction that writes looks for that head first. So an anchor that has seen more than the
ledger stays, until its owner makes a new ledger or restores a copy; both count all that it calls committed as spent.

What it cannot show: that somebody rolled back both files together. A process that has the ledger open sees that too, since
it remembers the last head (`chain.py`); one that is started afterwards does not. Entries after the last anchor may be lost
unseen, but nothing that they charge had left.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ...accounting import Budget
from ...asking.questions import Head
from ...files import write_file
from ...values import BadValue, number, whole
from .chain import Chain, canonical, digest
from .protected import Protected

VERSION = 1


@dataclass(frozen=True)
class Anchor:
    """What is known of a ledger without the ledger."""

    source: str
    number: int
    hash: str  # hexadecimal digits
    unit: str
    order: float | None
    protected: Protected
    committed: float  # amount that was spent, or was reserved by open runs
    alone: bool  # one run has, or had, the whole budget

    @property
    def head(self) -> Head:
        """The last entry that it has seen."""
        return Head(self.number, bytes.fromhex(self.hash))

    def write(self, path: Path) -> None:
        body = {"version": VERSION, **asdict(self)}
        whole_file = {**body, "checksum": digest(canonical(body).encode()).hex()}
        write_file(path, canonical(whole_file).encode() + b"\n", private=True)

    @staticmethod
    def read(path: Path) -> Anchor | None:
        """The anchor in a file; None if there is no file. A damaged one is refused, for it may say anything."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            body = json.loads(content)
            checksum = body.pop("checksum")
            if body.pop("version") != VERSION or checksum != digest(canonical({"version": VERSION, **body}).encode()).hex():
                raise ValueError
            anchor = Anchor(**body | {"protected": Protected(**body["protected"])})
            whole("number", anchor.head.number, 0)
            number("committed", anchor.committed, 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            remedy = "restore it from a copy; if there is none, check the ledger and run `prifedsync ledger anchor POLICY`"
            raise BadValue("anchor", path, "is damaged", remedy) from None
        return anchor

    def check(self, source: str, budget: Budget, protected: Protected) -> None:
        """Refuse an anchor that is about another source of records, another unit of the budget, or another promise."""
        if self.source != source:
            rule = f"is the anchor of the source {self.source}, and the policy names {source}"
            raise BadValue("anchor", self.source, rule, "name the anchor of this source")
        if self.unit != budget.unit:
            raise changed_unit(self.unit, budget)
        self.protected.check(protected)


def changed_unit(unit: str, budget: Budget) -> BadValue:
    rule = f"is set, and the ledger adds up {unit}: amounts of one cannot be compared with the other"
    return BadValue(f"budget.{budget.unit}", budget.mu or budget.epsilon, rule, f"set budget.{unit} instead")


def not_behind(chain: Chain, path: Path | None) -> Anchor | None:
    """The anchor, if the ledger contains what it has seen. None if the policy names no anchor."""
    if path is None:
        return None
    anchor = Anchor.read(path)
    if anchor is None:
        remedy = "restore it; if this is the latest ledger, run `prifedsync ledger anchor POLICY`"
        raise BadValue("anchor", path, "does not exist, and the policy names it", remedy)
    if chain.hash_of(anchor.number) != anchor.head.hash:
        rule = f"is behind its anchor, or is another one: the anchor has seen entry {anchor.number}"
        raise BadValue("ledger", chain.path, rule, "restore a newer copy: prifedsync ledger restore POLICY FILE")
    return anchor
