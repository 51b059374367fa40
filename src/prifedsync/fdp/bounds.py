"""Brackets, which contain a true value, and the adjacency relations."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


class Bound(NamedTuple):
    """A bracket that contains the true value. For a privacy loss the upper end is the safe one."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        """How far apart the two ends are."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower  # both may be infinite


class Neighbours(Enum):
    """The adjacency relation between two data sets: one record replaced, or one record added or removed."""

    REPLACE = "replace"
    ADD_REMOVE = "add-remove"

    def __repr__(self) -> str:
        return str(self)  # as it is written in Python, so that the repr of a plan can be copied
