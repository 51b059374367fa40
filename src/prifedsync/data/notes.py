"""What only the owner of a table may be told about it: it depends on the records, and is neither written nor sent."""

from __future__ import annotations

import numpy as np

from .encoding import Encoding, Ranged
from .scale import key

MOSTLY = 0.99  # of a column's values outside its range: probably another unit


def cut_values(encoding: Encoding, outside: np.ndarray) -> tuple[str, ...]:
    """A sentence for each column whose values lie nearly all outside its public range. `outside` is that of `Encoded`."""
    return tuple(
        said
        for column, values in zip(encoding.columns, outside.T, strict=True)
        if isinstance(column, Ranged) and (said := _sentence(column, values))
    )


def _sentence(column: Ranged, outside: np.ndarray) -> str:
    below = int((outside == -1).sum())
    above = int((outside == 1).sum())
    values = int(np.isfinite(outside).sum())
    if not values or below + above < MOSTLY * values:
        return ""
    low, high = column.span
    return (
        f"column {column.name!r}: {below + above} of {values} values lie outside its public range [{low:g}, {high:g}], "
        f"{below} below it and {above} above it, and count as its ends; "
        f"check the unit of the column, or correct {key('ranges', column.name)}"
    )
