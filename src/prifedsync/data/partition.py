"""How records are dealt to clients, and a client's held-out records chosen: pure functions of the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..fdp.values import BadValue, number, whole
from .federation import Client, Federation, Records, Task

if TYPE_CHECKING:
    from ..config import DataConfig


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """Random numbers for one purpose: what is drawn for another client or step cannot change them."""
    digest = hashlib.sha256("\0".join(purpose).encode()).digest()
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


def partitioned(config: DataConfig, records: Records, seed: int) -> dict[str, Records]:
    """Undivided records over `data.clients` clients, by `data.partition`."""
    clients = whole("data.clients", config.clients, 1)
    if config.partition == "column":
        remedy = 'use "shards" or "iid", or name a column of your own file in data.client_column'
        raise BadValue("data.partition", "column", "needs a column that names the client, and there is none", remedy)
    if config.partition not in ("shards", "iid"):
        raise BadValue("data.partition", repr(config.partition), "must be shards, iid or column")
    parts = whole("data.shards_per_client", config.shards_per_client, 1) if config.partition == "shards" else 1
    if clients * parts > len(records):
        what = "data.clients" if parts == 1 else "data.clients × data.shards_per_client"
        raise BadValue(what, clients * parts, f"must be at most the number of records, {len(records)}", "split over fewer")
    if config.partition == "iid":
        dealt = iid(len(records), clients, seed)
    else:
        dealt = shards(records.y.numpy(), clients, parts, seed)
    width = max(2, len(str(clients - 1)))
    return {f"client-{i:0{width}}": taken(records, mine) for i, mine in enumerate(dealt)}


def taken(records: Records, which: np.ndarray) -> Records:
    """Some of the records, by their numbers."""
    rows = torch.as_tensor(which, dtype=torch.int64)
    return Records(records.x[rows], records.y[rows])


def federated(config: DataConfig, clients: Mapping[str, Records], task: Task, seed: int) -> Federation:
    """The federation of these clients, each with its own held-out records."""
    return Federation(tuple(held_out(name, mine, config.test_fraction, seed) for name, mine in clients.items()), task)


def held_out(name: str, records: Records, fraction: float, seed: int) -> Client:
    """A client with a random fraction of its records held out for scores; at least one is left to train on."""
    number("data.test_fraction", fraction, 0, 1, ends="[)")
    count = max(0, min(round(len(records) * fraction), len(records) - 1))
    order = generator(seed, "test", name).permutation(len(records))
    return Client(name, taken(records, np.sort(order[count:])), taken(records, np.sort(order[:count])))
