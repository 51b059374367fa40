"""Public ranges: values are scaled by the ranges in the config, never by the ranges of the records."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..values import BadValue

EVERY = "*"  # the key for all columns; it does not apply to the label


def key(table: str, column: str) -> str:
    """The dotted name of a column's setting, as in a config file."""
    bare = column.replace("-", "_").isidentifier() and column.isascii()
    return f"data.{table}.{column}" if bare else f'data.{table}."{column}"'


def range_of(ranges: Mapping[str, tuple[float, float]], column: str) -> tuple[float, float] | None:
    """The public range of the column, or the one for all columns; None if the config has neither."""
    name = column if column in ranges else EVERY
    if name not in ranges:
        return None
    low, high = ranges[name]
    if not (low < high and math.isfinite(high - low)):  # two finite ends may be further apart than any finite number
        rule = "must be two finite numbers, the lower one first, and their difference finite"
        raise BadValue(key("ranges", name), [low, high], rule, "write [lowest, highest]")
    return float(low), float(high)


def scaled(values: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """The values with `span` mapped linearly to [−1, 1]. Values outside their public range are clamped."""
    low, high = span
    return np.clip((values - low) / (high - low) * 2 - 1, -1.0, 1.0)


def unscaled(values: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """Scaled values in the unit of their range: what `scaled` did, undone. Values beyond ±1 lie outside the range."""
    low, high = span
    return low + (values.astype(np.float64) + 1) / 2 * (high - low)


def constant_of(missing: Mapping[str, float | str], column: str) -> float | None:
    """The public constant that replaces missing values of the column; None if the config has none."""
    name = column if column in missing else EVERY
    if name not in missing:
        return None
    constant = missing[name]
    if isinstance(constant, str) or not math.isfinite(constant):
        remedy = "choose a number inside the column's range; a text is for a column with data.categories"
        raise BadValue(key("missing", name), constant, "must be a finite number", remedy)
    return float(constant)
