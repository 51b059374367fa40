"""How long an owner's ledger takes: `python benchmarks/ledger.py [ENTRIES]` prints a table.

At 100 entries and at ENTRIES (10,000): a budget check with a reservation, a charge with a reply of 4.8 MB (1.2 million
numbers in single precision) that is on the disk with its anchor, a stored reply, and opening the ledger.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from prifedsync.accounting import Budget, NoisySteps, PrivacyPlan
from prifedsync.owner.ledger import Ledger

REPLY = 4_800_000
REPEATS = 15
STEPS = NoisySteps(noise_multiplier=1e5, records=1000, batch="full", local_steps=1)


def charged(ledger, round, body):
    ledger.charge("busy", round, 0, question=b"q", status="sent", queries=1, body=body, scores={}, state=b"state")


def reserved(ledger, run, rounds):
    ledger.reserve(run, document=b"d", text="{}", plan=PrivacyPlan(mechanism=STEPS, rounds=rounds), by="bench")


def milliseconds(do):
    """The median and the largest of several runs."""
    taken = []
    for place in range(REPEATS):
        began = time.perf_counter()
        do(place)
        taken.append(1000 * (time.perf_counter() - began))
    return f"{statistics.median(taken):8.1f} {max(taken):8.1f}"


def measured(folder, entries):
    named = {"source": "bench", "budget": Budget(mu=1.0), "anchor": folder / "anchor"}
    path = folder / "ledger.db"
    Ledger.create(path, **named)
    ledger = Ledger.open(path, **named)
    reserved(ledger, "busy", 10**6)
    for round in range(entries):
        charged(ledger, round, b"small")
    body = os.urandom(REPLY)
    yield "reserve", milliseconds(lambda place: reserved(ledger, f"run-{place}", 10))
    yield "charge", milliseconds(lambda place: charged(ledger, entries + place, body))
    yield "stored", milliseconds(lambda place: ledger.stored("busy", entries + place, 0))
    ledger.close_file()
    yield "open", milliseconds(lambda _: Ledger.open(path, **named).close_file())


def main():
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{'entries':>8} {'what':<10} {'median':>8} {'largest':>8}  ms")
    for entries in (100, many):
        with tempfile.TemporaryDirectory() as folder:
            for what, taken in measured(Path(folder), entries):
                print(f"{entries:>8,} {what:<10} {taken}")


if __name__ == "__main__":
    main()
