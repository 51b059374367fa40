"""A federation: named clients whose records have one shape, and the task they are trained for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from ..limits import RECORD, Unit
from ..values import BadValue, whole
from .persons import by_person, check_persons

if TYPE_CHECKING:
    from .array_encoding import ArrayEncoding
    from .encoding import Encoding

Kind = Literal["classes", "binary", "regression"]
LONGEST_NAME = 200  # bytes: names become file names


@dataclass(frozen=True)
class Task:
    """What a model predicts.

    kind     "classes": one of `classes` classes. "binary": yes or no. "regression": a number.
    classes  how many classes there are: 2 for "binary", 0 for "regression".
    """

    kind: Kind
    classes: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            rule = f"must be one of {', '.join(get_args(Kind))}"
            raise BadValue("task.kind", repr(self.kind), rule)
        if self.kind == "classes":
            whole("task.classes", self.classes, 2)
        elif self.kind == "binary":
            whole("task.classes", self.classes, 2, 2)
        else:
            whole("task.classes", self.classes, 0, 0)

    @property
    def outputs(self) -> int:
        """How many outputs a model has for one record."""
        return self.classes if self.kind == "classes" else 1

    @property
    def label_dtype(self) -> torch.dtype:
        """The type of labels in tensors."""
        return torch.int64 if self.kind == "classes" else torch.float32


@dataclass(frozen=True, eq=False)
class Records:
    """Records x of shape [n, …] (float32, or int64 for tokens) and their labels y of shape [n].

    persons: whose record each is, int64 [n], where the guarantee is about persons. `check` puts the records of a person
    side by side and numbers the persons 0, 1, 2, … in this order.
    """

    x: Tensor
    y: Tensor
    persons: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def units(self) -> int:
        """How many persons, or records, there are: what a guarantee is about, and what is counted."""
        return len(self) if self.persons is None else len(self.persons.unique())


@dataclass(frozen=True, eq=False)
class Client:
    """One data owner: the records it trains on, and the test records that models are scored on."""

    name: str
    train: Records
    test: Records


@dataclass(frozen=True)
class Description:
    """What is public about a federation. It is enough to plan a run, and to be its server without holding a record."""

    sizes: Mapping[str, int]  # client name → units it trains on; nominal where the real number is private (add-remove)
    shape: tuple[int, ...]  # the shape of one record
    task: Task
    copies: int = 1  # how many clients may hold the same unit
    tokens: int = 0  # the vocabulary size if records are tokens; 0 if they are floats
    unit: Unit = RECORD  # what the guarantee is about: a record, or a person with all its records at a client

    def __post_init__(self) -> None:
        if not self.sizes:
            rule = "must hold at least one client"
            raise BadValue("federation.clients", "()", rule, "give at least one client")
        _names(self.sizes)
        for name, size in self.sizes.items():
            whole(f"client {name!r}, records", size, 1)
        whole("copies", self.copies, 1)

    def made_up(self, count: int) -> Records:
        """Random records of this shape that belong to nobody. A model is inspected with them if there are no others."""
        draw = torch.Generator().manual_seed(0)
        size = (count, *self.shape)
        if self.tokens:
            x = torch.randint(0, self.tokens, size, generator=draw)
        else:
            x = torch.randn(size, generator=draw)
        if self.task.kind == "regression":
            return Records(x, torch.randn(count, generator=draw))
        y = torch.randint(0, self.task.classes, (count,), generator=draw)
        return Records(x, y.to(self.task.label_dtype))


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients with their records, and the task that they share."""

    clients: tuple[Client, ...]
    task: Task
    copies: int = 1  # how many clients may hold the same record or person; it leaks through each of them
    encoding: Encoding | ArrayEncoding | None = None  # the public rules that the records were made by; None: by nothing
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # client → for its owner alone: never written

    @property
    def unit(self) -> Unit:
        """A person where the records say whose they are."""
        return RECORD if self.clients[0].train.persons is None else "person"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def tokens(self) -> bool:
        """Whether records are tokens (whole numbers) for an embedding. The package's own nets take floats."""
        return self.clients[0].train.x.dtype == torch.int64

    @property
    def description(self) -> Description:
        """What is public about the federation under replace-one adjacency, where the number of units is.

        It leaves out the vocabulary size, which the records alone do not tell."""
        sizes = {client.name: client.train.units for client in self.clients}
        return Description(sizes, self.shape, self.task, self.copies, unit=self.unit)


def check(federation: Federation) -> Federation:
    """The federation as float32 or int64 tensors. Records that cannot be trained on are refused with the client's name."""
    if not federation.clients:
        rule = "must hold at least one client"
        raise BadValue("federation.clients", "()", rule, "give at least one client")
    _names(client.name for client in federation.clients)
    first: Client | None = None
    clients = []
    for client in federation.clients:
        who = f"client {client.name!r}"
        train = _records(f"{who}, training set", client.train, federation.task)
        if not len(train):
            remedy = "leave the client out, or give it records"
            raise BadValue(f"{who}, training records", 0, "must be at least 1", remedy)
        first = first or replace(client, train=train)
        _alike(f"{who}, training set", train, first)
        if len(client.test):
            test = _records(f"{who}, test set", client.test, federation.task)
            _alike(f"{who}, test set", test, first)
        else:  # an empty test set may have any shape
            none = None if train.persons is None else train.persons[:0]
            test = Records(train.x[:0], train.y[:0], none)
        check_persons(who, train.persons, test.persons, first.train.persons is not None)
        clients.append(Client(client.name, _by_person(train), _by_person(test, first=train.units)))
    return replace(federation, clients=tuple(clients))


def paired(who: str, x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> None:
    """Refuse arrays that are not one row of x for every label in y."""
    if y.ndim != 1:
        rule = "must hold one label per record, in shape (n,)"
        raise BadValue(f"{who}, y", f"array of shape {tuple(y.shape)}", rule, "flatten it")
    if x.ndim < 2 or math.prod(x.shape[1:]) == 0:
        rule = "must have shape (n, …), with one record in each row"
        remedy = "reshape it to (n, 1)" if x.ndim == 1 else "give each record at least one value"
        raise BadValue(f"{who}, x", f"array of shape {tuple(x.shape)}", rule, remedy)
    if len(x) != len(y):
        rule = f"must be the number of labels in y: there are {len(y)} labels"
        raise BadValue(f"{who}, records in x", len(x), rule, "give every record one label")


def _names(names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if not isinstance(name, str) or not name.strip():
            rule = "must be a text and not empty"
            raise BadValue("client name", repr(name), rule, "give every client a name")
        if not _is_file_name(name):
            rule = f"must be printable, without / or \\ and at most {LONGEST_NAME} bytes long as a file name"
            raise BadValue("client name", repr(name), rule, "rename the client")
        if name in seen:
            remedy = "give each client its own name"
            raise BadValue("client name", repr(name), "is the name of two clients", remedy)
        seen.add(name)


def _is_file_name(name: str) -> bool:
    if not name.isprintable() or set(name) & set("/\\") or name in (".", ".."):
        return False
    return len(quote(name, safe="")) <= LONGEST_NAME  # last: a name that is not UTF-8 cannot be quoted


def _records(who: str, records: Records, task: Task) -> Records:
    for part, values in (("x", records.x), ("y", records.y)):
        if not isinstance(values, Tensor) or values.is_complex():
            kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
            rule = "must be a tensor of real numbers"
            raise BadValue(f"{who}, {part}", kind, rule, "convert it with torch.as_tensor")
    paired(who, records.x, records.y)
    tokens = not records.x.is_floating_point() and records.x.dtype != torch.bool
    x = records.x.detach().to(torch.int64 if tokens else torch.float32)
    _finite(f"{who}, x", x)
    labels = records.y.detach() if records.y.is_floating_point() else records.y.to(torch.int64)
    _finite(f"{who}, y", labels)
    if task.kind != "regression":
        _check_classes(who, labels, task)
    y = labels.to(task.label_dtype)
    _finite(f"{who}, y", y)
    return Records(x, y, _persons(who, records))


def _persons(who: str, records: Records) -> Tensor | None:
    persons = records.persons
    if persons is None:
        return None
    if not isinstance(persons, Tensor) or persons.dtype != torch.int64 or persons.shape != (len(records),):
        tensor = isinstance(persons, Tensor)
        shown = f"{persons.dtype} of shape {tuple(persons.shape)}" if tensor else type(persons).__name__
        rule = f"must be one whole number (int64) for each of the {len(records)} records"
        raise BadValue(f"{who}, persons", shown, rule, "number the persons of a client")
    return persons.detach()


def _by_person(records: Records, first: int = 0) -> Records:
    """The same records, those of a person side by side, and persons numbered from `first`."""
    if records.persons is None:
        return records
    order, persons = by_person(records.persons)
    return Records(records.x[order], records.y[order], persons + first)


def _check_classes(who: str, labels: Tensor, task: Task) -> None:
    wrong = (labels < 0) | (labels >= task.classes)
    if labels.is_floating_point():
        wrong |= labels != labels.floor()
    if wrong.any():
        at = int(wrong.nonzero()[0])
        rule = f"must be a class from 0 to {task.classes - 1}"
        remedy = "correct the label, or set a larger number of classes"
        raise BadValue(f"{who}, label of record {at}", labels[at].item(), rule, remedy)


def _finite(what: str, values: Tensor) -> None:
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return
    at = int((~values.isfinite()).nonzero()[0, 0])
    value = values[at].flatten()
    first = value[~value.isfinite()][0].item()
    remedy = "replace it, or leave the record out"
    raise BadValue(f"{what} of record {at}", first, "must be finite in float32", remedy)


def _alike(who: str, records: Records, first: Client) -> None:
    model = f"as in the training set of client {first.name!r}"
    shape = tuple(records.x.shape[1:])
    expected_shape = tuple(first.train.x.shape[1:])
    if shape != expected_shape:
        rule = f"must be {expected_shape}, {model}"
        remedy = "give all clients the same columns"
        raise BadValue(f"{who}, shape of a record", shape, rule, remedy)
    if records.x.dtype != first.train.x.dtype:
        dtype = str(records.x.dtype).removeprefix("torch.")
        rule = f"must be {str(first.train.x.dtype).removeprefix('torch.')}, {model}"
        remedy = "convert it: floats for values, whole numbers for tokens"
        raise BadValue(f"{who}, dtype of x", dtype, rule, remedy)
