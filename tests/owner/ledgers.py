"""Ledgers for tests: a small plan, a slot that is charged, and files in a temporary folder."""

from dataclasses import dataclass, field
from pathlib import Path

from prifedsync.accounting import Budget, NoisySteps, PrivacyPlan
from prifedsync.owner.ledger import Ledger, Protected

TEXT = '{"run": "öffentlich"}'


def plan_of(mu_of_a_round=0.05, rounds=25, attempts=0, **own):
    """Full batches under replacement: each slot costs exactly this μ squared."""
    local = NoisySteps(noise_multiplier=2 / mu_of_a_round, records=100, batch="full", local_steps=1)
    return PrivacyPlan(mechanism=local, rounds=rounds, attempts=attempts, **own)


@dataclass
class Site:
    """Where a ledger and its anchor lie, and how they are opened."""

    folder: Path
    budget: Budget = field(default_factory=lambda: Budget(mu=1.0))
    source: str = "clinic"
    protected: Protected = field(default_factory=Protected)
    anchored: bool = True

    @property
    def path(self):
        return self.folder / "ledger.db"

    @property
    def anchor(self):
        return self.folder / "anchor.json" if self.anchored else None

    @property
    def named(self):
        return {"source": self.source, "budget": self.budget, "protected": self.protected, "anchor": self.anchor}

    def new(self, **own):
        Ledger.create(self.path, **self.named, **own)
        return self.open()

    def open(self, **own):
        return Ledger.open(self.path, **self.named, **own)


def reserve(ledger, run="a", plan=None, document=b"d" * 32, by="asker"):
    return ledger.reserve(run, document=document, text=TEXT, plan=plan or plan_of(), by=by)


def charge(ledger, run="a", round=0, attempt=0, status="sent", body=b"reply", question=b"q" * 32, state=b"carried"):
    return ledger.charge(
        run,
        round,
        attempt,
        question=question,
        status=status,
        queries=int(status == "sent"),
        body=body,
        scores={"accuracy": 0.5},
        state=state,
    )
