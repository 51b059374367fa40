"""Test records drawn again with replacement, within each client: how often each record counts in a resample.

A resample is a row of weights [N], so a score of resampled records is a weighted score of the records there are. Where a
person has several rows (`groups`), whole persons are drawn: rows of one person are no independent observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..values import BadValue

RESAMPLES = 1_000
FEWEST_RESAMPLES = 200
MOST_DRAWN = 50_000_000  # records in all resamples together; beyond, there are fewer resamples
AT_ONCE = 2_000_000  # weights that are held at once

Array = np.ndarray


@dataclass(frozen=True)
class Resampling:
    """Resamples of the test records of clients that stand one after another.

    sizes   the number of records of each client; none is 0.
    seed    resamples are the same for every model and metric with the same seed, so their scores can be compared.
    groups  the person of each record, as a number within its client; None: every record is drawn by itself.
    """

    sizes: Sequence[int]
    seed: int = 0
    groups: Sequence[Array] | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and [len(each) for each in self.groups] != list(self.sizes):
            raise BadValue("groups", [len(each) for each in self.groups], "must name one person for each test record")

    @property
    def count(self) -> int:
        """How many resamples there are."""
        return int(np.clip(MOST_DRAWN // max(1, sum(self.sizes)), FEWEST_RESAMPLES, RESAMPLES))

    @property
    def units(self) -> list[int]:
        """How many records, or persons, are drawn at each client."""
        if self.groups is None:
            return list(self.sizes)
        return [len(np.unique(each)) for each in self.groups]

    def weights(self) -> Iterator[Array]:
        """The weights of all records, [r, N] at a time."""
        units = np.array(self.units)
        starts = np.repeat(np.cumsum(units) - units, units)  # of its client, for each unit
        sizes = np.repeat(units, units)
        unit_of = self._unit_of(units)
        total = int(units.sum())
        at_once = max(1, AT_ONCE // max(total, sum(self.sizes)))
        generator = np.random.default_rng(self.seed)
        for first in range(0, self.count, at_once):
            rows = min(at_once, self.count - first)
            drawn = starts + (generator.random((rows, total)) * sizes).astype(np.int64)
            drawn += np.arange(rows)[:, None] * total
            counts = np.bincount(drawn.ravel(), minlength=rows * total).reshape(rows, total).astype(np.float64)
            yield counts if unit_of is None else counts[:, unit_of]

    def _unit_of(self, units: Array) -> Array | None:
        """The unit that each record belongs to; None: it is one by itself."""
        if self.groups is None:
            return None
        starts = np.cumsum(units) - units
        inverse = [np.unique(each, return_inverse=True)[1] for each in self.groups]
        return np.concatenate([start + each for start, each in zip(starts, inverse, strict=True)])
