"""What is public about the records of a run: from the records where they can be read here, from the config elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import ClientConfig, Config, DataConfig, joined
from ..data import Description, Encoding, labels, load, sheet, table
from ..data.preprocessing import Preprocessing
from ..limits import RECORD
from ..values import NOT_GIVEN, BadValue
from .shares import Share, shares_of

Note = Callable[[str], None]
EXAMPLE = "`prifedsync deploy init DIR` without a config writes an example with handwritten digits"
SOURCES = ("csv", "npz")


@dataclass(frozen=True)
class Schema:
    """A run that is described, without its records.

    config       what the server trains by.
    description  clients, sizes, shape and task.
    rules        how a raw row becomes a record.
    shares       each client's own file; empty where the records cannot be read here.
    """

    config: Config
    description: Description
    rules: Preprocessing
    shares: Mapping[str, Share]


def schema_of(config: Config, note: Note) -> Schema:
    """The public numbers of a config's records. `note` is told what is changed in the config, and why."""
    _check_source(config.data)
    config = _adapted(config, note)
    path = Path(config.data.path)
    if path.exists():
        return _from_records(config)
    sizes = {name: own.records for name, own in config.clients.items() if own.records is not None}
    if not sizes or len(sizes) < len(config.clients) or config.data.source != "csv" or not config.data.columns:
        rule = "cannot be read here, and the config does not say enough without it"
        remedy = (
            "give the file or folder; or, for tables, data.columns with a range or categories for each column, "
            "and [clients.NAME] with records for each client"
        )
        raise BadValue("data.path", path, rule, remedy)
    return _from_config(config, sizes)


def _check_source(data: DataConfig) -> None:
    if data.source not in SOURCES:
        rule = "cannot be deployed: each client of a run on real machines has a csv or npz file of its own"
        raise BadValue("data.source", data.source, rule, EXAMPLE)
    if data.overlap:
        rule = "draws records that several clients hold, which is for simulations"
        raise BadValue("data.overlap", "true", rule, "remove it; data.person_clients is for persons at several clients")


def _adapted(config: Config, note: Note) -> Config:
    """The config without what a simulation on one machine alone has."""
    changes: dict[str, Any] = {"compare": [], "performance.checkpoint_seconds": 0.0, "performance.device": "cpu"}
    if config.data.test_fraction > 0:
        changes["data.test_fraction"] = 0.0
        note("data.test_fraction is set to 0: owners train on all their records, and no score leaves them")
    if config.privacy.randomness != "system":
        changes["privacy.randomness"] = "system"
        note('privacy.randomness is set to "system": each owner draws its own secret noise')
    if config.lost > 0:
        changes["lost"] = 0.0
        note("lost is set to 0: on real machines nothing has to be simulated")
    if config.performance.dtype in ("tf32", "bf16"):
        note(f'performance.dtype is set to "float32": owners do not compute in {config.performance.dtype}')
    if config.performance.dtype != "float64":
        changes["performance.dtype"] = "float32"
    return config.changed(**changes)


def _from_records(config: Config) -> Schema:
    federation = load(config.data, config.seed)  # first: it refuses what is wrong with a file
    shares = shares_of(config.data)
    if federation.tokens:
        rule = "holds whole numbers (tokens), and a run on real machines takes numbers"
        raise BadValue("data.path", config.data.path, rule, 'give data.ranges."*" to scale them')
    found = federation.description
    sizes = _nominal(config, found.sizes)
    rules = Preprocessing.of(federation, config.data)
    return Schema(_for_server(config, sizes, rules), replace(found, sizes=sizes), rules, shares)


def _nominal(config: Config, sizes: Mapping[str, int]) -> dict[str, int]:
    """The public numbers of records: those that are there, or under add-remove adjacency those that the config gives."""
    given = {name: own.records for name, own in config.clients.items()}
    private = config.privacy.neighbours == "add-remove"
    for name, size in sizes.items():
        field = joined(joined("clients", name), "records")
        said = given.get(name)
        if private and said is None:
            rule = "must be set with add-remove adjacency: a public nominal number, never the actual one"
            raise BadValue(field, NOT_GIVEN, rule, f"give it in the config: {field} = …")
        if not private and said not in (None, size):
            rule = f"must be {size}, as in the client's file: under replace-one adjacency the number is public"
            raise BadValue(field, said, rule, "leave it out")
    return {name: (given.get(name) if private else None) or size for name, size in sizes.items()}


def _from_config(config: Config, sizes: Mapping[str, int]) -> Schema:
    """The same from the config alone: its columns have public rules, and its clients public sizes."""
    data = config.data
    task = labels.task(data)
    encoding = Encoding.of(data, table.columns(data, _empty_sheet(data), task), task)
    if data.person_clients > len(sizes):
        rule = f"must be at most the number of clients, {len(sizes)}"
        raise BadValue("data.person_clients", data.person_clients, rule, "count the clients that may hold one person")
    description = Description(
        dict(sizes),
        (encoding.width,),
        task,
        copies=data.person_clients if data.person else 1,
        unit="person" if data.person else RECORD,
    )
    rules = Preprocessing(encoding, encoding.label, description.shape)
    return Schema(_for_server(config, sizes, rules), description, rules, {})


def _empty_sheet(data: DataConfig) -> sheet.Sheet:
    """A table with the columns that the config names, and no rows."""
    special = [name for name in (data.label, data.client_column, data.person) if name]
    header = tuple(dict.fromkeys([*data.columns, *special]))
    return sheet.Sheet(Path(data.path), header, [], [])


def _for_server(config: Config, sizes: Mapping[str, int], rules: Preprocessing) -> Config:
    """The config with the number of records of each client, and with data as each owner has them."""
    _check_known(config, sizes)
    clients = {name: replace(config.clients.get(name, ClientConfig()), records=size) for name, size in sizes.items()}
    return replace(config, data=own_data(config.data, rules, len(sizes)), clients=clients)


def _check_known(config: Config, sizes: Mapping[str, int]) -> None:
    for name in config.clients:
        if name not in sizes:
            remedy = f"there are {', '.join(sizes)}"
            raise BadValue(joined("clients", name), NOT_GIVEN, "is not a client of this data", remedy)


def own_data(data: DataConfig, rules: Preprocessing, clients: int) -> DataConfig:
    """[data] as it is where a client has a file of its own. The columns are listed: their order is that of the inputs."""
    return replace(
        data,
        path=f"records.{data.source}",
        clients=clients,
        partition="iid",
        client_column="",
        test_fraction=0.0,
        columns=rules.columns if data.source == "csv" else (),
    )
