"""What a run folder says about raw rows: public rules alone, enough to use its models on other records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..values import BadValue, whole
from .array_encoding import ArrayEncoding
from .encoding import Encoding, Ranged
from .federation import Federation
from .labels import Label
from .scale import constant_of

if TYPE_CHECKING:
    from ..config import DataConfig

SCHEMA_VERSION = 1
SEPARATORS = (",", ";", "\t")  # of the columns of a file
MOST_VALUES = 10**8  # of one record; a folder may come from somebody else


@dataclass(frozen=True)
class Preprocessing:
    """How a raw row becomes a record, and a model's output an answer. Nothing of it is computed from records.

    encoding  the rules of a table's columns, or those of an array's values.
    label     the rules of what is predicted: its task, the names of the classes, its range.
    shape     the shape of one record, before fixed features.
    """

    encoding: Encoding | ArrayEncoding
    label: Label
    shape: tuple[int, ...]

    @staticmethod
    def of(federation: Federation, config: DataConfig) -> Preprocessing:
        """The rules that these records were encoded by."""
        encoding = federation.encoding
        if isinstance(encoding, Encoding):
            return Preprocessing(encoding, encoding.label, federation.shape)
        if encoding is None:  # a Federation from Python: its values and labels are used as they are
            names = tuple(map(str, config.label_values))
            label = Label(config.label, federation.task, names if len(names) == federation.task.classes else ())
        else:
            label = Label.of(config, federation.task)
        return Preprocessing(replace(encoding or ArrayEncoding(), tokens=federation.tokens), label, federation.shape)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table, in order. The values of an array are x0, x1, …"""
        if isinstance(self.encoding, Encoding):
            return self.encoding.names
        return tuple(f"x{i}" for i in range(math.prod(self.shape)))

    def as_json(self) -> dict[str, Any]:
        """All rules as JSON, from which `from_json` makes the same value."""
        kind = "table" if isinstance(self.encoding, Encoding) else "arrays"
        said = {"schema_version": SCHEMA_VERSION, "kind": kind, "shape": list(self.shape), "label": self.label.as_json()}
        rules = self.encoding.as_json()
        return said | (rules if kind == "table" else {"values": rules})

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Preprocessing:
        if said["schema_version"] != SCHEMA_VERSION:
            rule = f"must be {SCHEMA_VERSION}, the version that this program reads"
            raise BadValue("schema_version", said["schema_version"], rule, "read it with the program that wrote it")
        encoding: Encoding | ArrayEncoding
        if said["kind"] == "table":
            encoding = Encoding.from_json(said)
            _check_table(encoding)
        else:
            encoding = ArrayEncoding.from_json(said["values"])
        shape = tuple(whole("shape", side, 1, MOST_VALUES) for side in said["shape"])
        if math.prod(shape) > MOST_VALUES:
            raise BadValue("shape", list(shape), f"must have at most {MOST_VALUES} values")
        if isinstance(encoding, Encoding) and shape != (encoding.width,):
            raise BadValue("shape", list(shape), f"must be {[encoding.width]}, the number of inputs of its columns")
        return Preprocessing(encoding, Label.from_json(said["label"]), shape)

    @staticmethod
    def read(path: Path) -> Preprocessing:
        """The rules in a file. It may come from somebody else, so that every value is checked."""
        remedy = "restore the file from a copy"
        try:
            return Preprocessing.from_json(json.loads(path.read_bytes()))
        except BadValue as bad:
            raise BadValue("preprocessing", path, f"cannot be read: {bad}", remedy) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadValue("preprocessing", path, f"cannot be read: {error!r}", remedy) from None


def _check_table(encoding: Encoding) -> None:
    """Refuse rules that no config could have set."""
    for column in encoding.columns:
        if isinstance(column, Ranged):
            constant_of({} if column.missing is None else {column.name: column.missing}, column.name)
    if encoding.separator not in SEPARATORS or encoding.decimal not in (".", ","):
        raise BadValue("separator, decimal", (encoding.separator, encoding.decimal), "are not those of a table")
