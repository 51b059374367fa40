"""How many records and labels each client has, as plain numbers for tables and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from .federation import Client, Federation


@dataclass(frozen=True)
class Counted:
    """One client: how many records it has, and how many of its training records have each label.

    persons: how many persons it trains on and tests on; None where records name no persons.
    """

    name: str
    train: int
    test: int
    labels: Mapping[str, int]
    persons: tuple[int, int] | None = None

    @property
    def seen(self) -> int:
        """How many different labels it trains on."""
        return sum(count > 0 for count in self.labels.values())


@dataclass(frozen=True)
class Census:
    """The counts of all clients. In a regression task there are no labels."""

    clients: tuple[Counted, ...]
    labels: tuple[str, ...]  # the labels that some client trains on
    copies: int

    @property
    def records(self) -> int:
        """Training records of all clients together. A record that c clients hold counts c times."""
        return sum(client.train for client in self.clients)

    @property
    def sizes(self) -> tuple[int, float, int]:
        """The minimum, the median and the maximum number of training records of a client."""
        sizes = [client.train for client in self.clients]
        return min(sizes), median(sizes), max(sizes)

    @property
    def persons(self) -> int | None:
        """Persons that the clients train on, together; None where records name no persons."""
        counted = [client.persons[0] for client in self.clients if client.persons is not None]
        return sum(counted) if counted else None

    @property
    def labels_seen(self) -> float:
        """How many different labels a client trains on, on average."""
        return fmean(client.seen for client in self.clients)

    def as_json(self) -> dict[str, Any]:
        clients = [asdict(client) for client in self.clients]
        return {"clients": clients, "copies": self.copies, "records": self.records, "persons": self.persons}


def census(federation: Federation, names: Sequence[str] = ()) -> Census:
    """The counts of a federation. `names` are the public names of the labels, if they have any."""
    if federation.task.kind == "regression":
        clients = tuple(_counted(client, {}) for client in federation.clients)
        return Census(clients, (), federation.copies)
    used = {int(label) for client in federation.clients for label in client.train.y.unique().tolist()}
    labels = sorted(used)
    name_of = {label: names[label] if label < len(names) else str(label) for label in labels}
    clients = tuple(_counted(client, name_of) for client in federation.clients)
    return Census(clients, tuple(name_of.values()), federation.copies)


def _counted(client: Client, name_of: Mapping[int, str]) -> Counted:
    counts = Counter(map(int, client.train.y.tolist())) if name_of else Counter[int]()
    labels = {name: counts[label] for label, name in name_of.items()}
    persons = None if client.train.persons is None else (client.train.units, client.test.units)
    return Counted(client.name, len(client.train), len(client.test), labels, persons)
