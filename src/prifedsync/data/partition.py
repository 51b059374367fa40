"""How records are dealt to clients, and a client's held-out records chosen: pure functions of the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..values import BadValue, number, whole
from .dirichlet import Law, dirichlet
from .federation import Client, Federation, Records, Task

if TYPE_CHECKING:
    from ..config import DataConfig


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """Random numbers for one purpose: what is drawn for another client or step cannot change them."""
    # A name that is not UTF-8 is refused later, with all other names that are none.
    digest = hashlib.sha256("\0".join(purpose).encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(
        np.random.SeedSequence([whole("seed", seed, 0), *np.frombuffer(digest, dtype="<u4").tolist()])
    )


def iid(records: int, clients: int, seed: int) -> list[np.ndarray]:
    """Every record dealt at random to one client; sizes equal up to one."""
    order = generator(seed, "iid").permutation(records)
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(labels: np.ndarray, clients: int, shards_per_client: int, seed: int) -> list[np.ndarray]:
    """Records sorted by label (random order within one), cut into equal shards; each client gets as many random shards."""
    random = generator(seed, "shards")
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    cut = np.array_split(order, clients * shards_per_client)
    dealt = random.permutation(len(cut)).reshape(clients, shards_per_client)
    return [np.sort(np.concatenate([cut[i] for i in mine])) for mine in dealt]


def quantity(records: int, clients: int, concentration: float, seed: int) -> list[np.ndarray]:
    """Every record dealt at random to one client; sizes by a Dirichlet law, but none below two where there are enough."""
    random = generator(seed, "quantity")
    least = 2 if 2 * clients <= records else 1  # of two records, one can be held out
    chances = random.dirichlet(np.full(clients, concentration))
    sizes = least + random.multinomial(records - least * clients, chances)
    return [np.sort(part) for part in np.split(random.permutation(records), np.cumsum(sizes)[:-1])]


@dataclass(frozen=True)
class Deal:
    """The numbers of each client's records, and the law it drew them by, if it did."""

    rows: Mapping[str, np.ndarray]
    laws: Mapping[str, Law] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """The largest number of clients that have one and the same record."""
        return int(np.bincount(np.concatenate(list(self.rows.values()))).max())


def divided(config: DataConfig, records: Records, task: Task, seed: int) -> Federation:
    """Undivided records over `data.clients` clients, by `data.partition`, each with held-out records."""
    if config.partition == "dirichlet" and config.overlap:
        return _overlapping(config, records, task, seed)
    dealt = deal(config, records.y.numpy(), seed)
    return federated(config, {name: taken(records, mine) for name, mine in dealt.rows.items()}, task, seed)


def deal(config: DataConfig, labels: np.ndarray, seed: int) -> Deal:
    """Which of the records with these labels each client gets."""
    clients = whole("data.clients", config.clients, 1)
    _refuse(config, len(labels))
    width = max(2, len(str(clients - 1)))
    names = [f"client-{i:0{width}}" for i in range(clients)]
    if config.partition == "dirichlet":
        rows, laws = dirichlet(
            labels, clients, config.records_per_client, config.concentration, config.overlap,
            lambda client: generator(seed, "dirichlet", str(client)),
        )  # fmt: skip
        return Deal(dict(zip(names, rows, strict=True)), dict(zip(names, laws, strict=True)))
    if config.partition == "shards":
        rows = shards(labels, clients, config.shards_per_client, seed)
    elif config.partition == "quantity":
        rows = quantity(len(labels), clients, config.concentration, seed)
    else:
        rows = iid(len(labels), clients, seed)
    return Deal(dict(zip(names, rows, strict=True)))


def _refuse(config: DataConfig, records: int) -> None:
    """Refuses a split that these settings cannot make of so many records."""
    if config.partition == "column":
        remedy = 'use "shards" or "iid", or name a column of your own file in data.client_column'
        raise BadValue("data.partition", "column", "needs a column that names the client, and there is none", remedy)
    if config.partition not in ("shards", "iid", "dirichlet", "quantity"):
        raise BadValue("data.partition", repr(config.partition), "must be shards, iid, dirichlet, quantity or column")
    if config.partition in ("dirichlet", "quantity"):
        number("data.concentration", config.concentration, 0, 1e6, ends="(]")
    rule = f"must be at most the number of records, {records}"
    if config.partition == "dirichlet":
        _refuse_dirichlet(config, records, rule)
        return
    parts = whole("data.shards_per_client", config.shards_per_client, 1) if config.partition == "shards" else 1
    if config.clients * parts > records:
        what = "data.clients" if parts == 1 else "data.clients × data.shards_per_client"
        raise BadValue(what, config.clients * parts, rule, "split over fewer")


def _refuse_dirichlet(config: DataConfig, records: int, rule: str) -> None:
    if config.task == "regression":
        remedy = 'use "shards" (of neighbouring values), "iid" or "quantity"'
        raise BadValue("data.partition", "dirichlet", "needs classes, and data.task is regression", remedy)
    each = whole("data.records_per_client", config.records_per_client, 1)
    if config.overlap and each > records:
        raise BadValue("data.records_per_client", each, rule, "draw fewer")
    if not config.overlap and config.clients * each > records:
        remedy = 'draw fewer, share records with data.overlap = true, or deal all with data.partition = "iid"'
        raise BadValue("data.clients × data.records_per_client", config.clients * each, rule, remedy)


def _overlapping(config: DataConfig, records: Records, task: Task, seed: int) -> Federation:
    """Clients that draw from the same records, each as many to train and to test on as if it held out its own."""
    _refuse(config, len(records))
    # Held out before anything is dealt, once for everybody: what one client held out of its own draw could be trained on
    # by another, and scores would be of records that the models have seen.
    apart = held_out("everybody", records, config.test_fraction, seed)
    each = config.records_per_client
    tests = _held(each, config.test_fraction)
    dealt = deal(replace(config, records_per_client=each - tests), apart.train.y.numpy(), seed)
    clients = []
    for name, mine in dealt.rows.items():
        drawn = dealt.laws[name].tests(tests, apart.test.y.numpy(), generator(seed, "test", name))
        clients.append(Client(name, taken(apart.train, mine), taken(apart.test, drawn)))
    return Federation(tuple(clients), task, dealt.copies)


def taken(records: Records, which: np.ndarray) -> Records:
    """Some of the records, by their numbers."""
    rows = torch.as_tensor(which, dtype=torch.int64)
    return Records(records.x[rows], records.y[rows])


def federated(config: DataConfig, clients: Mapping[str, Records], task: Task, seed: int) -> Federation:
    """The federation of these clients, each with its own held-out records."""
    return Federation(tuple(held_out(name, mine, config.test_fraction, seed) for name, mine in clients.items()), task)


def held_out(name: str, records: Records, fraction: float, seed: int) -> Client:
    """A client with a random fraction of its records held out for scores; at least one is left to train on."""
    count = _held(len(records), fraction)
    order = generator(seed, "test", name).permutation(len(records))
    return Client(name, taken(records, np.sort(order[count:])), taken(records, np.sort(order[:count])))


def _held(records: int, fraction: float) -> int:
    """How many of so many records are held out."""
    number("data.test_fraction", fraction, 0, 1, ends="[)")
    return max(0, min(round(records * fraction), records - 1))
