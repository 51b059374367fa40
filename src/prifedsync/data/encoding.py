"""The public rules that turn a table into records. Training and prediction both encode by them, and by nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..values import BadValue
from .cures import Cure, not_a_number
from .federation import Task
from .labels import Label
from .near import meant
from .scale import constant_of, key, range_of, scaled
from .text import Cell, as_number, category, is_missing, shown

if TYPE_CHECKING:
    from ..config import DataConfig

MOST_NAMED = 8  # columns or values that a message lists

# The inputs of a column [rows, inputs], and where its values lie [rows]: −1 below the public range, 1 above it, 0 inside;
# NaN where a value is missing or refused, and in a column without a range.
Inputs = tuple[np.ndarray, np.ndarray]
Refuse = Callable[[int, object, str, str], None]  # row, value, rule, remedy
Place = Callable[[int, str], str]  # where the value of a row in a column is, in words


@dataclass(frozen=True)
class Ranged:
    """A column of numbers: values are clamped to a public range, which is scaled to [−1, 1]. It is one input."""

    name: str
    span: tuple[float, float]
    missing: float | None = None  # the constant for missing values; without one they are refused

    def __post_init__(self) -> None:
        range_of({self.name: self.span}, self.name)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, cells: Sequence[Cell], decimal: str, refuse: Refuse) -> Inputs:
        """The scaled values; NaN where one is refused."""
        values = np.full(len(cells), np.nan)
        missing = []
        for i, cell in enumerate(cells):
            value = as_number(cell, decimal)
            if value is not None and math.isfinite(value):
                values[i] = value
            elif is_missing(cell):
                missing.append(i)
            elif value is None:
                refuse(i, shown(cell), *not_a_number(cell, self.name, decimal))
            else:
                refuse(i, cell, "must be finite", "correct it, or leave the cell empty for a missing value")
        low, high = self.span
        outside = np.where(np.isnan(values), np.nan, 1.0 * (values > high) - (values < low))
        if self.missing is None:
            remedy = f"fill it in, or set {key('missing', self.name)} to a constant that replaces it"
            for i in missing:
                refuse(i, shown(cells[i]), "is a missing value", remedy)
        else:
            values[missing] = self.missing
        with np.errstate(over="ignore"):  # what overflows is clamped
            return scaled(values, self.span)[:, None], outside

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "range": list(self.span), "missing": self.missing}


@dataclass(frozen=True)
class Listed:
    """A column of categories: each listed value is one input, 1 where the row has it and 0 elsewhere."""

    name: str
    values: tuple[str, ...]
    missing: str | None = None  # the listed value that stands for missing values; without one they are refused

    def __post_init__(self) -> None:
        known = [category(value) for value in self.values]
        if not known or len(set(known)) < len(known):
            rule = "must list at least one value, and each once"
            raise BadValue(
                key("categories", self.name), list(self.values), rule, "correct the list; 1 and 1.0 are the same value"
            )
        if self.missing is not None and category(self.missing) not in known:
            rule = f"must be one of {key('categories', self.name)} = {', '.join(self.values)}"
            raise BadValue(key("missing", self.name), repr(self.missing), rule, "add it to that list")

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={value}" for value in self.values)

    def encode(self, cells: Sequence[Cell], decimal: str, refuse: Refuse) -> Inputs:
        """Zeros and ones; NaN where a value is refused."""
        position = {category(value): at for at, value in enumerate(self.values)}
        stand_in = None if self.missing is None else position[category(self.missing)]
        encoded = np.zeros((len(cells), len(self.values)))
        for i, cell in enumerate(cells):
            at = position.get(category(cell, decimal))  # a listed value is never missing, not even "NA"
            if at is None and is_missing(cell):
                at = stand_in
            if at is None:
                encoded[i] = np.nan
                refuse(i, shown(cell), *self._unlisted(cell))
            else:
                encoded[i, at] = 1
        return encoded, np.full(len(cells), np.nan)

    def _unlisted(self, cell: Cell) -> Cure:
        listed = key("categories", self.name)
        if is_missing(cell):
            remedy = f"fill it in, or add a value for it to {listed} and name it in {key('missing', self.name)}"
            return "is a missing value", remedy
        near = meant(str(cell), self.values)
        more = ", …" if len(self.values) > MOST_NAMED else ""
        rule = f"must be one of {listed} = {', '.join(self.values[:MOST_NAMED])}{more}"
        return rule, f"{f'write {near!r}' if near else 'correct it'}, or add {shown(cell)} to the list"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "categories": list(self.values), "missing": self.missing}


Column = Ranged | Listed


@dataclass(frozen=True)
class Encoded:
    """Rows as inputs of a model, and the first reason why a row is refused."""

    x: np.ndarray  # float32 [rows, inputs]; NaN where a value is refused
    refusals: Mapping[int, BadValue]  # row → reason, in the order of the rows
    outside: np.ndarray  # [rows, columns]: where each value lies, as in `Inputs`

    def checked(self) -> np.ndarray:
        """The inputs of all rows. Raises the first refusal if there is one."""
        for refusal in self.refusals.values():
            raise refusal
        return self.x


@dataclass(frozen=True)
class Encoding:
    """The public rules of a table, in the order of a model's inputs, and those of its label."""

    columns: tuple[Column, ...]
    label: Label
    separator: str = ","  # of the columns of a file
    decimal: str = "."  # the decimal mark of numbers in a file

    @classmethod
    def of(cls, config: DataConfig, features: Sequence[str], task: Task) -> Encoding:
        """The rules that the config gives for these columns. A column without a rule is refused."""
        without = [name for name in features if name not in config.categories and range_of(config.ranges, name) is None]
        if without:
            raise _no_rule(without)
        columns = tuple(_column(config, name) for name in features)
        separator = "\t" if config.separator == "tab" else config.separator
        return cls(columns, Label.of(config, task), separator, config.decimal)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order: `age`, `sex=f`, `sex=m`."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def width(self) -> int:
        """How many inputs a model has."""
        return len(self.inputs)

    def encode(self, table: Mapping[str, Sequence[Cell]], place: Place | None = None) -> Encoded:
        """The rows of a table (column name → texts or values), with a reason for each row that is refused.

        place: where the value of a row in a column is, for reasons; by default "row 1, column 'age'".
        """
        self.check_columns(tuple(table))
        where = place or _row
        rows = len(table[self.names[0]])
        refusals: dict[int, BadValue] = {}
        inputs = []
        outside = np.empty((rows, len(self.columns)))
        for at, column in enumerate(self.columns):
            cells = table[column.name]
            if len(cells) != rows:
                rule = f"must be {rows}, as in column {self.names[0]!r}"
                raise BadValue(f"column {column.name!r}, number of values", len(cells), rule, "give each row one value")

            def refuse(i: int, value: object, rule: str, remedy: str, name: str = column.name) -> None:
                refusals.setdefault(i, BadValue(where(i, name), value, rule, remedy))

            each, outside[:, at] = column.encode(cells, self.decimal, refuse)
            inputs.append(each)
        x = np.concatenate(inputs, axis=1).astype(np.float32)
        return Encoded(x, dict(sorted(refusals.items())), outside)

    def check_columns(self, header: Sequence[str]) -> None:
        """Refuse a table without one of the columns. Other columns may be there; they are not read."""
        for name in self.names:
            if name not in header:
                near = meant(name, [other for other in header if other not in self.names])
                remedy = f"rename {near!r} to {name!r}" if near else "add the column"
                raise BadValue("columns", ", ".join(map(repr, header)), f"must include {name!r}", remedy)

    def encode_labels(self, cells: Sequence[Cell], place: Place | None = None) -> Tensor:
        """The labels of rows. The first that the label's rules do not take is refused."""
        where = place or _row
        return self.label.from_texts(cells, lambda i: where(i, self.label.name), self.decimal)

    def as_json(self) -> dict[str, Any]:
        """All rules as JSON, from which `from_json` makes the same encoding."""
        columns = [column.as_json() for column in self.columns]
        return {
            "columns": columns, "label": self.label.as_json(), "separator": self.separator, "decimal": self.decimal
        }  # fmt: skip

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Encoding:
        """The encoding that `as_json` wrote."""
        try:
            return cls(
                tuple(_column_from_json(column) for column in said["columns"]),
                Label.from_json(said["label"]),
                said["separator"],
                said["decimal"],
            )
        except BadValue:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            rule = f"must be written by Encoding.as_json: {type(error).__name__} {error}"
            raise BadValue("encoding", said, rule, "take the file of the run as it was written") from None


def _column(config: DataConfig, name: str) -> Column:
    if name in config.categories:
        missing = config.missing.get(name)
        values = tuple(map(str, config.categories[name]))
        return Listed(name, values, None if missing is None else str(missing))
    span = range_of(config.ranges, name)
    assert span is not None
    return Ranged(name, span, constant_of(config.missing, name))


def _column_from_json(said: Mapping[str, Any]) -> Column:
    if "categories" in said:
        return Listed(said["name"], tuple(said["categories"]), said["missing"])
    return Ranged(said["name"], _span(said["range"]), said["missing"])


def _span(said: Sequence[float]) -> tuple[float, float]:
    low, high = said
    return float(low), float(high)


def _no_rule(names: Sequence[str]) -> BadValue:
    more = ", …" if len(names) > MOST_NAMED else ""
    ranges = ", ".join(f"{_bare(name)} = [LOWEST, HIGHEST]" for name in names[:MOST_NAMED])
    rule = "must each have a public rule: without one, a value has no bound and no scale"
    remedy = (
        f"add ranges = {{ {ranges}{more} }} to [data], list the values of a text column in data.categories, "
        "or leave columns out with data.columns"
    )
    return BadValue("feature columns", ", ".join(map(repr, names)), rule, remedy)


def _bare(name: str) -> str:
    return key("ranges", name).removeprefix("data.ranges.")


def _row(i: int, column: str) -> str:
    return f"row {i + 1}, column {column!r}"
