"""Who has what: numbers of records and labels of each client, as plain numbers for tables and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from .federation import Client, Federation


@dataclass(frozen=True)
class Counted:
    """One client: its records, and how many of those trained on have each label."""

    name: str
    train: int
    test: int
    labels: Mapping[str, int]

    @property
    def seen(self) -> int:
        """How many labels it trains on."""
        return sum(count > 0 for count in self.labels.values())


@dataclass(frozen=True)
class Census:
    """All clients, counted; without labels where a number is predicted."""

    clients: tuple[Counted, ...]
    labels: tuple[str, ...]  # those that some client trains on
    copies: int

    @property
    def records(self) -> int:
        """Training records of all clients together; one that lies with c clients counts c times."""
        return sum(client.train for client in self.clients)

    @property
    def sizes(self) -> tuple[int, float, int]:
        """The least, the median and the most training records of a client."""
        sizes = [client.train for client in self.clients]
        return min(sizes), median(sizes), max(sizes)

    @property
    def labels_seen(self) -> float:
        """How many labels a client trains on, on average."""
        return fmean(client.seen for client in self.clients)

    def as_json(self) -> dict[str, Any]:
        return {"clients": [asdict(client) for client in self.clients], "copies": self.copies, "records": self.records}


def census(federation: Federation, names: Sequence[str] = ()) -> Census:
    """The federation, counted; labels are called by their public names where there are any."""
    if federation.task.kind == "regression":
        return Census(tuple(_counted(client, {}) for client in federation.clients), (), federation.copies)
    had = sorted({int(label) for client in federation.clients for label in client.train.y.unique().tolist()})
    called = {label: names[label] if label < len(names) else str(label) for label in had}
    return Census(tuple(_counted(client, called) for client in federation.clients), (*called.values(),), federation.copies)


def _counted(client: Client, called: Mapping[int, str]) -> Counted:
    counts = Counter(map(int, client.train.y.tolist())) if called else Counter[int]()
    return Counted(
        client.name, len(client.train), len(client.test), {name: counts[label] for label, name in called.items()}
    )
