"""How records are split over clients, and which are held out for tests: pure functions of the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..values import BadValue, number, whole
from .dirichlet import LabelDistribution, dirichlet
from .federation import Client, Federation, Records, Task
from .persons import drawn

if TYPE_CHECKING:
    from ..config import DataConfig


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """Random numbers for one purpose. Draws for other purposes or clients do not change them."""
    # A name that is not UTF-8 is refused later, together with other bad names.
    digest = hashlib.sha256("\0".join(purpose).encode("utf-8", "surrogatepass")).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    return np.random.default_rng(np.random.SeedSequence([whole("seed", seed, 0), *words]))


def iid(records: int, clients: int, seed: int) -> list[np.ndarray]:
    """Each record goes to one random client. Sizes differ by at most one."""
    order = generator(seed, "iid").permutation(records)
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(labels: np.ndarray, clients: int, shards_per_client: int, seed: int) -> list[np.ndarray]:
    """Records are sorted by label and cut into shards of equal size. Each client gets `shards_per_client` random shards."""
    random = generator(seed, "shards")
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    cut = np.array_split(order, clients * shards_per_client)
    dealt = random.permutation(len(cut)).reshape(clients, shards_per_client)
    return [np.sort(np.concatenate([cut[i] for i in mine])) for mine in dealt]


def quantity(records: int, clients: int, concentration: float, seed: int) -> list[np.ndarray]:
    """Each record goes to one random client. Sizes follow a Dirichlet distribution, and are at least two if possible."""
    random = generator(seed, "quantity")
    least = 2 if 2 * clients <= records else 1  # with two records, one can be held out
    fractions = random.dirichlet(np.full(clients, concentration))
    sizes = least + random.multinomial(records - least * clients, fractions)
    return [np.sort(part) for part in np.split(random.permutation(records), np.cumsum(sizes)[:-1])]


@dataclass(frozen=True)
class Deal:
    """The indices of each client's records, and with the Dirichlet partition each client's label distribution."""

    rows: Mapping[str, np.ndarray]
    distributions: Mapping[str, LabelDistribution] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """The largest number of clients that hold the same record."""
        return int(np.bincount(np.concatenate(list(self.rows.values()))).max())


def divided(config: DataConfig, records: Records, task: Task, seed: int) -> Federation:
    """The federation of records that are split over `data.clients` clients by `data.partition`. Each holds some out."""
    if records.persons is not None:
        dealt = _deal_persons(config, records.persons, seed)
    elif config.partition == "dirichlet" and config.overlap:
        return _overlapping(config, records, task, seed)
    else:
        dealt = deal(config, records.y.numpy(), seed)
    clients = {name: subset(records, mine) for name, mine in dealt.rows.items()}
    return federated(config, clients, task, seed)


def _deal_persons(config: DataConfig, persons: Tensor, seed: int) -> Deal:
    """Which records each client gets if persons are dealt, each to one client with all its records."""
    if config.partition not in ("iid", "quantity"):
        rule = "deals records by their labels, and would deal one person's records to several clients"
        remedy = 'with data.person, use "iid" or "quantity", or name the clients in data.client_column'
        raise BadValue("data.partition", config.partition, rule, remedy)
    person_of = persons.unique(return_inverse=True)[1].numpy()
    dealt = deal(config, np.zeros(int(person_of.max()) + 1), seed)
    return Deal({name: np.flatnonzero(np.isin(person_of, mine)) for name, mine in dealt.rows.items()})


def deal(config: DataConfig, labels: np.ndarray, seed: int) -> Deal:
    """Which records each client gets. `labels` are the labels of all records."""
    clients = whole("data.clients", config.clients, 1)
    _check_split(config, len(labels))
    width = max(2, len(str(clients - 1)))
    names = [f"client-{i:0{width}}" for i in range(clients)]
    if config.partition == "dirichlet":
        rows, distributions = dirichlet(
            labels, clients, config.records_per_client, config.concentration, config.overlap,
            lambda client: generator(seed, "dirichlet", str(client)),
        )  # fmt: skip
        return Deal(dict(zip(names, rows, strict=True)), dict(zip(names, distributions, strict=True)))
    if config.partition == "shards":
        rows = shards(labels, clients, config.shards_per_client, seed)
    elif config.partition == "quantity":
        rows = quantity(len(labels), clients, config.concentration, seed)
    else:
        rows = iid(len(labels), clients, seed)
    return Deal(dict(zip(names, rows, strict=True)))


def _check_split(config: DataConfig, records: int) -> None:
    """Refuse settings that cannot split this number of records."""
    if config.partition == "column":
        remedy = 'use "shards" or "iid", or name a column of your own file in data.client_column'
        rule = "needs a column that names the client, but there is none"
        raise BadValue("data.partition", "column", rule, remedy)
    if config.partition not in ("shards", "iid", "dirichlet", "quantity"):
        rule = "must be shards, iid, dirichlet, quantity or column"
        raise BadValue("data.partition", repr(config.partition), rule, "choose one of these")
    if config.partition in ("dirichlet", "quantity"):
        number("data.concentration", config.concentration, 0, 1e6, ends="(]")
    rule = f"must be at most the number of records, {records}"
    if config.partition == "dirichlet":
        _check_dirichlet(config, records, rule)
        return
    parts = 1
    if config.partition == "shards":
        parts = whole("data.shards_per_client", config.shards_per_client, 1)
    if config.clients * parts > records:
        field_name = "data.clients" if parts == 1 else "data.clients × data.shards_per_client"
        raise BadValue(field_name, config.clients * parts, rule, "use fewer clients or shards")


def _check_dirichlet(config: DataConfig, records: int, rule: str) -> None:
    if config.task == "regression":
        remedy = 'use "shards" (of neighbouring values), "iid" or "quantity"'
        rule = "needs classes, but data.task is regression"
        raise BadValue("data.partition", "dirichlet", rule, remedy)
    each = whole("data.records_per_client", config.records_per_client, 1)
    if config.overlap and each > records:
        raise BadValue("data.records_per_client", each, rule, "draw fewer records")
    if not config.overlap and config.clients * each > records:
        remedy = 'draw fewer records, let clients share them with data.overlap = true, or use data.partition = "iid"'
        raise BadValue("data.clients × data.records_per_client", config.clients * each, rule, remedy)


def _overlapping(config: DataConfig, records: Records, task: Task, seed: int) -> Federation:
    """Clients that draw from the same records. Numbers of training and test records are as if each held out its own."""
    _check_split(config, len(records))
    # Test records are held out once, before clients draw: a record that one client held out of its own draw could be a
    # training record of another client, and scores would then be on records that the models have seen.
    # The name "everybody" is part of the random draw, so it stays.
    apart = held_out("everybody", records, config.test_fraction, seed)
    each = config.records_per_client
    tests = _held(each, config.test_fraction)
    dealt = deal(replace(config, records_per_client=each - tests), apart.train.y.numpy(), seed)
    test_labels = apart.test.y.numpy()
    clients = []
    for name, mine in dealt.rows.items():
        drawn = dealt.distributions[name].tests(tests, test_labels, generator(seed, "test", name))
        clients.append(Client(name, subset(apart.train, mine), subset(apart.test, drawn)))
    return Federation(tuple(clients), task, dealt.copies)


def subset(records: Records, rows: np.ndarray) -> Records:
    """The records with these indices."""
    index = torch.as_tensor(rows, dtype=torch.int64)
    return Records(records.x[index], records.y[index], None if records.persons is None else records.persons[index])


def federated(config: DataConfig, clients: Mapping[str, Records], task: Task, seed: int) -> Federation:
    """The federation of these clients, each with its own held-out records."""
    fraction = config.test_fraction
    members = tuple(held_out(name, mine, fraction, seed) for name, mine in clients.items())
    return Federation(members, task)


def held_out(name: str, records: Records, fraction: float, seed: int) -> Client:
    """A client that holds out a random fraction of its records for scores. At least one record is left for training.

    Where records have persons, a fraction of the persons is held out, each with all records.
    """
    count = _held(records.units, fraction)
    if records.persons is None:
        order = generator(seed, "test", name).permutation(records.units)
        return Client(name, subset(records, np.sort(order[count:])), subset(records, np.sort(order[:count])))
    held = np.isin(records.persons.numpy(), drawn(records.persons, count, seed, name))
    return Client(name, subset(records, np.flatnonzero(~held)), subset(records, np.flatnonzero(held)))


def _held(records: int, fraction: float) -> int:
    """How many of this number of records or persons are held out."""
    number("data.test_fraction", fraction, 0, 1, ends="[)")
    return max(0, min(round(records * fraction), records - 1))
