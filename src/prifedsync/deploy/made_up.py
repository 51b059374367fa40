"""Tables of made-up records, to rehearse a run before its records are there. They follow the public rules alone."""

from __future__ import annotations

import numpy as np

from ..data.encoding import Encoding, Listed, Ranged
from ..data.labels import Label
from ..owner.policy import Policy
from .shares import as_table


def made_up(encoding: Encoding, policy: Policy) -> bytes:
    """A table with as many units as the policy names, each with one record."""
    count = policy.source.records
    draw = np.random.default_rng(0)
    columns = {column.name: _cells(column, count, draw, encoding.decimal) for column in encoding.columns}
    columns[encoding.label.name] = _labels(encoding.label, count, draw, encoding.decimal)
    if policy.data.person:
        columns[policy.data.person] = [f"{policy.client} {number}" for number in range(count)]
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return as_table([list(columns), *rows], encoding.separator)


def _cells(column: Ranged | Listed, count: int, draw: np.random.Generator, decimal: str) -> list[str]:
    if isinstance(column, Ranged):
        return _numbers(column.span, count, draw, decimal)
    return [column.values[at] for at in draw.integers(0, len(column.values), count)]


def _labels(label: Label, count: int, draw: np.random.Generator, decimal: str) -> list[str]:
    if label.task.kind == "regression":
        return _numbers(label.span or (0.0, 1.0), count, draw, decimal)
    return [label.texts[at] for at in draw.integers(0, len(label.texts), count)]


def _numbers(span: tuple[float, float], count: int, draw: np.random.Generator, decimal: str) -> list[str]:
    return [f"{value:.6g}".replace(".", decimal) for value in draw.uniform(*span, count)]
