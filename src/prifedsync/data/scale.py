"""Public ranges: values are scaled by what the config says of them, never by what the records say."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..values import BadValue

EVERY = "*"  # the key of a rule for every column; a label takes only a rule under its own name


def key(table: str, column: str) -> str:
    """The dotted name of a column's rule, as one writes it in a config file."""
    return (
        f"data.{table}.{column}"
        if column.replace("-", "_").isidentifier() and column.isascii()
        else f'data.{table}."{column}"'
    )


def range_of(ranges: Mapping[str, tuple[float, float]], column: str) -> tuple[float, float] | None:
    """The column's public range, or the one for every column, if either is given."""
    name = column if column in ranges else EVERY
    if name not in ranges:
        return None
    low, high = ranges[name]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadValue(key("ranges", name), [low, high], "must be a lower and a higher finite number")
    return float(low), float(high)


def scaled(values: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """The values with `span` moved linearly onto [−1, 1], clamped: a value outside its public range counts as its end."""
    low, high = span
    return np.clip((values - low) / (high - low) * 2 - 1, -1.0, 1.0)


def constant_of(missing: Mapping[str, float], column: str) -> float | None:
    """The public constant that stands for a missing value of the column, if one is given."""
    name = column if column in missing else EVERY
    if name not in missing:
        return None
    if not math.isfinite(missing[name]):
        raise BadValue(key("missing", name), missing[name], "must be a finite number")
    return float(missing[name])
