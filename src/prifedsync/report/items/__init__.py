"""The 24 items that an officer expects, each filled from the record, a policy, a ledger, an audit or the owner's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import guarantee, owner, run
from .known import NOT_SAID, Filled, From, Known, Status

UNFINISHED = "the run is not finished"


@dataclass(frozen=True)
class Item:
    """One item: its number and source in the officer's list, and what this run has for it."""

    number: int
    title: str
    source: str
    status: Status
    text: str
    taken_from: From


@dataclass(frozen=True)
class Asked:
    """One item of the list, and what fills it."""

    number: int
    title: str
    source: str
    fill: Callable[[Known], Filled]


ASKED = (
    Asked(1, "name, owner, purpose, sector, law and date", "registry 1", owner.names),
    Asked(2, "kind of product, and who may receive it", "registry 1, NIST 4.2", owner.receivers),
    Asked(
        3,
        "the guarantee: μ with its range, then ε at δ, and the parameters behind them",
        "NIST 2.3, 2.5, registry 2",
        guarantee.numbers,
    ),
    Asked(4, "how large that is", "NIST 2.2", guarantee.judged),
    Asked(
        5, "unit of privacy in real-world words, and figures for several records", "NIST 2.4, registry 2", guarantee.unit
    ),
    Asked(6, "neighbours, and what is public by that choice", "NIST 2.4, registry 3", guarantee.neighbours),
    Asked(7, "two hypotheses that an attacker would tell apart", "NIST 2.4", guarantee.hypotheses),
    Asked(8, "data domain, and quantities that are not protected", "registry 3", guarantee.domain),
    Asked(9, "other releases from the same records, and what is left of the budget", "NIST 2.2, 2.6, 4.1", run.others),
    Asked(10, "who is trusted for what, and what is left if that fails", "NIST 4.2, registry 2 and 3", run.trust),
    Asked(11, "fixed or interactive, and who chose the rounds", "NIST 4.1, registry 2", run.fixed),
    Asked(
        12,
        "mechanism: clipping, noise, sampling, steps, rounds, participation; library and version",
        "NIST 3.1, registry 3",
        run.mechanism,
    ),
    Asked(13, "accounting method, its assumptions, its bracket", "registry 3", guarantee.accounting),
    Asked(14, "post-processing", "registry 3", run.post_processing),
    Asked(15, "preprocessing, exploration and tuning, and whether tuning was charged", "registry 3", owner.preparing),
    Asked(
        16,
        "implementation hazards: floating point, timing, error messages, randomness",
        "NIST 4.3, registry 3",
        run.hazards,
    ),
    Asked(17, "tests and audit: the lower bound beside the claim", "NIST 3", run.audited),
    Asked(
        18,
        "utility with an interval, against non-private and alone, per group and for the smallest client",
        "NIST 3.2, 3.3",
        run.utility,
    ),
    Asked(19, "where raw data lie, who has access, and keys", "NIST 4.4, registry 3", owner.raw_data),
    Asked(20, "data minimisation: which columns, and why", "NIST 4.5", owner.columns),
    Asked(21, "attacks by all means reasonably likely", "EDPB 28/2024, SACRO-ML", guarantee.attacks),
    Asked(22, "who chose ε or μ, and why", "registry 3", owner.chosen),
    Asked(23, "verdict with reason and next step", "SACRO-ML", run.verdict),
    Asked(24, "signatures, and hashes of record and models", "SACRO-ML", run.signatures),
)


def items_of(known: Known) -> tuple[Item, ...]:
    """All items of a finished run."""
    return tuple(Item(asked.number, asked.title, asked.source, *asked.fill(known)) for asked in ASKED)


def open_items() -> tuple[Item, ...]:
    """The same of a run that is not finished."""
    return tuple(Item(asked.number, asked.title, asked.source, "open", UNFINISHED, "") for asked in ASKED)


__all__ = ["ASKED", "NOT_SAID", "Asked", "Item", "Known", "items_of", "open_items"]
