"""Clients whose label distributions differ.

Each client draws its own label distribution from a Dirichlet distribution, and then its records from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Pools = Sequence[np.ndarray]  # for each label, the indices of the records that can be drawn


@dataclass(frozen=True)
class LabelDistribution:
    """The probability of each label in one client's records."""

    labels: np.ndarray
    probabilities: np.ndarray

    def counts(self, wanted: int, available: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """How many records of each label, `wanted` in all: a multinomial draw, with at most `available` of each label.

        If a label has too few records, the missing ones are drawn again from the labels that have records left. They are
        drawn by the labels' probabilities, or uniformly if all of these are zero.
        """
        counts = np.zeros_like(available)
        while (missing := wanted - int(counts.sum())) > 0:
            left = counts < available
            likely = np.flatnonzero(left & (self.probabilities > 0))
            weights = self.probabilities[likely]
            if not len(likely):
                likely = np.flatnonzero(left)
                weights = np.ones(len(likely))
            counts[likely] += random.multinomial(missing, weights / weights.sum())
            counts = np.minimum(counts, available)
        return counts

    def drawn(self, wanted: int, pools: Pools, random: np.random.Generator) -> np.ndarray:
        """The indices of `wanted` different records."""
        counts = self.counts(wanted, np.array([len(pool) for pool in pools]), random)
        parts = [random.choice(pool, count, replace=False) for pool, count in zip(pools, counts, strict=True)]
        return np.sort(np.concatenate(parts))

    def tests(self, wanted: int, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """The indices of test records from the same distribution; fewer than `wanted` if there are not enough."""
        pools = [
            pool if probability > 0 else pool[:0]
            for pool, probability in zip(by_label(labels, self.labels), self.probabilities, strict=True)
        ]
        available = sum(map(len, pools))
        return self.drawn(min(wanted, available), pools, random)


def by_label(labels: np.ndarray, wanted: np.ndarray) -> Pools:
    """For each wanted label, the indices of the records that have it."""
    order = np.argsort(labels, kind="stable")
    ends = [np.searchsorted(labels[order], wanted, side) for side in ("left", "right")]
    return [order[first:last] for first, last in zip(*ends, strict=True)]


def dirichlet(
    labels: np.ndarray,
    clients: int,
    records_each: int,
    concentration: float,
    overlap: bool,
    random_of: Callable[[int], np.random.Generator],
) -> tuple[list[np.ndarray], list[LabelDistribution]]:
    """The indices of each client's records, and each client's label distribution. Client i draws from `random_of(i)`.

    With `overlap`, every client draws from all records. Without, it draws from those that no earlier client has drawn.
    """
    known = np.unique(labels)
    pools = by_label(labels, known)
    rows = []
    distributions = []
    for client in range(clients):
        random = random_of(client)
        distribution = LabelDistribution(known, random.dirichlet(np.full(len(known), concentration)))
        mine = distribution.drawn(records_each, pools, random)
        if not overlap:
            pools = [np.setdiff1d(pool, mine, assume_unique=True) for pool in pools]
        rows.append(mine)
        distributions.append(distribution)
    return rows, distributions
