"""Records from Python: passed to a run, or returned by a user's function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import named
from ..values import BadValue, whole
from . import labels
from .array_encoding import ArrayEncoding
from .arrays import client
from .federation import Client, Federation, Records, Task, check
from .persons import stated

if TYPE_CHECKING:
    from ..config import DataConfig

WANTED = "must be a Federation, or a dict of client name → (x, y) or (x, y, x_test, y_test)"
WITH_PERSONS = (
    "must be a Federation, or with data.person a dict of client name → (x, y, person) or "
    "(x, y, person, x_test, y_test, person_test)"
)


def given(clients: Federation | Mapping[str, tuple[Any, ...]], config: DataConfig, seed: int) -> Federation:
    """The checked federation of these clients. Labels and values of a dict are read as the config's [data] says."""
    return stated(check(_federation("clients", clients, config, seed)), config)


def from_function(config: DataConfig, seed: int) -> Federation:
    """The federation from the function named in `data.source`, which is called with the seed if it takes one argument."""
    returned = named.call("data.source", config.source, seed)
    return _federation(f"what {config.source} returns", returned, config, seed)


def _federation(what: str, clients: Any, config: DataConfig, seed: int) -> Federation:
    if isinstance(clients, Federation):
        return _well_formed(what, clients)
    if not isinstance(clients, Mapping) or not clients:
        nothing = clients is None or isinstance(clients, Mapping)
        shown = "nothing" if nothing else f"a {type(clients).__name__}"
        raise BadValue(what, shown, WANTED, "change it to one of the two")
    task = labels.task(config)
    wanted, parts_in_a_set = (WITH_PERSONS, 3) if config.person else (WANTED, 2)
    made = []
    for name, parts in clients.items():
        who = f"client {name!r}"
        several = isinstance(parts, (tuple, list))
        if not isinstance(name, str) or not several or len(parts) not in (parts_in_a_set, 2 * parts_in_a_set):
            shown = f"{who}: {len(parts)} parts" if several else f"{who}: a {type(parts).__name__}"
            remedy = "use texts as names, and arrays for records and labels"
            raise BadValue(what, shown, wanted, remedy)
        arrays = [_array(part, who) for part in parts]
        sets = [arrays[:parts_in_a_set], arrays[parts_in_a_set:]]
        made.append(client(config, task, name, [each for each in sets if each], seed, who))
    return Federation(tuple(made), task, encoding=ArrayEncoding.of(config))


def _array(values: Any, who: str) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        plain = values.detach().cpu()
        if plain.dtype == torch.bfloat16:  # numpy has no bfloat16
            plain = plain.float()
        return plain.numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        rule = f"cannot be converted to an array: {named.one_line(error)}"
        remedy = "give all rows the same length"
        raise BadValue(f"{who}, array", type(values).__name__, rule, remedy) from None


def _well_formed(what: str, federation: Federation) -> Federation:
    clients = federation.clients
    sound = isinstance(clients, (tuple, list)) and isinstance(federation.task, Task)
    if not sound or not all(_is_client(client) for client in clients):
        rule = "must hold a tuple of Clients, each with train and test Records, and a Task"
        raise BadValue(what, "a Federation", rule, "construct it from these")
    copies = whole("federation.copies", federation.copies, 1, max(1, len(clients)))
    return replace(federation, clients=tuple(clients), copies=copies)


def _is_client(value: object) -> bool:
    return isinstance(value, Client) and isinstance(value.train, Records) and isinstance(value.test, Records)
