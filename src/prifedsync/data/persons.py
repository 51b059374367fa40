"""Whose records they are, where a guarantee is about persons: ids become numbers, and a person's records stay together."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..values import NOT_GIVEN, BadValue
from .text import is_missing

if TYPE_CHECKING:
    from ..config import DataConfig
    from .federation import Federation


def from_texts(ids: Sequence[str], place: Callable[[int], str], decimal: str = ".") -> Tensor:
    """A number for each id [n]: a digest, so that a person's number depends on nobody else. `place` says where an id is.

    Ids that are numbers are compared as numbers: 7, 7.0 and 007 are one person. A spreadsheet may have written one id in
    several ways. Two persons who are taken for one are protected together; one who is taken for two is not protected.
    """
    for i, text in enumerate(ids):
        if is_missing(_plain(text)):
            remedy = "fill in the person of this record, or leave the record out"
            raise BadValue(place(i), repr(text), "must name a person", remedy)
    number_of = {text: _digest(_compared(text, decimal)) for text in set(ids)}
    return torch.tensor([number_of[text] for text in ids], dtype=torch.int64)


def _plain(text: str) -> str:
    """The text without characters that nobody sees, and with one way to write each that looks alike."""
    composed = unicodedata.normalize("NFKC", text)
    return "".join(each for each in composed if unicodedata.category(each) != "Cf").strip()


def _compared(text: str, decimal: str) -> str:
    """Equal for texts that name the same person."""
    plain = _plain(text)
    try:
        number = Decimal(plain.replace(decimal, "."))
    except InvalidOperation:
        return f"text {plain}"
    if not number.is_finite():
        return f"text {plain}"
    return f"number {number.normalize() if number else 0}"


def _digest(*parts: object) -> int:
    """63 bits. Of a million persons, two have the same with a chance of 10⁻⁷, and are then protected together."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def drawn(persons: Tensor, count: int, seed: int, client: str) -> list[int]:
    """So many of the persons, at random: those with the smallest digests of seed, client and person.

    If one person is replaced by another, at most one person changes sides, so that training sets stay neighbours.
    """
    everybody = persons.unique().tolist()
    return sorted(everybody, key=lambda person: (_digest(seed, client, person), person))[:count]


def from_array(ids: np.ndarray, records: int, who: str) -> Tensor:
    """The same for an array of whole numbers or texts."""
    if ids.shape != (records,) or ids.dtype.kind not in "iuUS":
        rule = f"must hold one whole number or text for each of the {records} records"
        remedy = "give every record the id of its person"
        raise BadValue(f"{who}, persons", f"{ids.dtype} of shape {ids.shape}", rule, remedy)
    decoded = np.char.decode(ids, "utf-8", "replace") if ids.dtype.kind == "S" else ids
    return from_texts([str(each) for each in decoded.tolist()], lambda i: f"{who}, person of record {i}")


def by_person(persons: Tensor) -> tuple[Tensor, Tensor]:
    """An order in which each person's records are side by side, and the persons in that order, numbered 0, 1, 2, …

    Persons come in the order of their numbers, whatever their records are and wherever they stand. So the records of one
    person decide neither who else is held out nor who else is in a batch.
    """
    order = torch.argsort(persons, stable=True)
    return order, persons[order].unique_consecutive(return_inverse=True)[1]


def rows_of_each(persons: Tensor) -> Tensor:
    """How many records each person has, of persons as `by_person` numbers them."""
    return torch.bincount(persons)


def check_persons(who: str, train: Tensor | None, test: Tensor | None, wanted: bool) -> None:
    """Refuse a client without persons where others have them, and a person who is trained on and tested on."""
    if (train is not None) != wanted or (test is not None) != wanted:
        rule = "must be given for the training and test records of all clients, or for none"
        raise BadValue(f"{who}, persons", NOT_GIVEN, rule, "say whose each record is")
    if train is not None and test is not None and bool(torch.isin(test, train).any()):
        rule = "has training and test records at one client"
        raise BadValue(f"{who}, a person", NOT_GIVEN, rule, "put all records of a person into one of the two")


def stated(federation: Federation, config: DataConfig) -> Federation:
    """The federation with what its owners state about persons; refused where its records say otherwise."""
    if federation.unit != "person":
        if config.person:
            rule = "names the person of each record, but these records have no persons"
            raise BadValue("data.person", repr(config.person), rule, "give the persons, or leave it out")
        return federation
    for client in federation.clients:
        assert client.train.persons is not None
        most = int(rows_of_each(client.train.persons).max())
        if most > config.rows_per_person:
            rule = f"must be at most data.rows_per_person = {config.rows_per_person}"
            remedy = "raise it to a number that is public knowledge, or leave out some records of such persons"
            raise BadValue(f"client {client.name!r}, records of one person", most, rule, remedy)
    if config.person_clients > len(federation.clients):
        rule = f"must be at most the number of clients, {len(federation.clients)}"
        raise BadValue("data.person_clients", config.person_clients, rule, "count the clients that may hold one person")
    return replace(federation, copies=max(federation.copies, config.person_clients))
