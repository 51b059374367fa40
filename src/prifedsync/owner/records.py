"""The owner's own records, as its policy describes them. Whatever is wrong with them is told to the owner alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import DataConfig, as_mapping
from ..config.layering import moved, starting_at
from ..data import Description, Federation, Records, load
from ..values import BadValue, counted
from .policy import Policy

SEED = 0  # of the records held out: always the same ones, so that no test record is ever trained on


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """The records that are trained on, those that are held out, and what is public about them."""

    train: Records
    test: Records
    description: Description
    notes: tuple[str, ...] = ()  # for the owner alone


def records_of(policy: Policy) -> OwnRecords:
    """The records of this policy, all of one client; refused where they are not those that the policy is about."""
    federation = load(_own_data(policy), SEED)
    if len(federation.clients) != 1:
        rule = f"holds the records of {len(federation.clients)} clients, but all records of an owner are its own"
        raise BadValue("data.path", policy.data.path, rule, "give a file of this owner alone")
    (client,) = federation.clients
    _check_unit(policy, federation)
    _check_number(policy, client.train)
    notes = tuple(note for several in federation.notes.values() for note in several)
    description = Description(
        {policy.client: policy.source.records},
        federation.shape,
        federation.task,
        policy.source.holders,
        unit=policy.source.unit,
    )
    return OwnRecords(client.train, client.test, description, notes)


def _own_data(policy: Policy) -> DataConfig:
    """Where to read: one client has everything. How many owners hold a unit is stated, and not seen in one owner's file."""
    here = moved({"data": as_mapping(policy.data)}, starting_at(policy.folder))["data"]
    located = replace(policy.data, source=here["source"], path=here["path"])
    return replace(located, clients=1, partition="iid", person_clients=1)


def _check_unit(policy: Policy, federation: Federation) -> None:
    if federation.unit != policy.source.unit:
        rule = f"is not what the records are about: they are those of {federation.unit}s"
        remedy = "set source.unit and data.person to what the records have"
        raise BadValue("source.unit", policy.source.unit, rule, remedy)


def _check_number(policy: Policy, train: Records) -> None:
    """Refuse another number than the public one, where the adjacency relation makes it public."""
    if policy.source.neighbours == "replace" and train.units != policy.source.records:
        found = counted(train.units, policy.source.unit)
        rule = f"must be the number of units to train on, and there {'is' if train.units == 1 else 'are'} {found}"
        remedy = 'correct it; where the number must stay private, set source.neighbours = "add-remove"'
        raise BadValue("source.records", policy.source.records, rule, remedy)
