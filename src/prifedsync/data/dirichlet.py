"""Clients that differ in their labels by a Dirichlet law: each draws its own chances of the labels, then its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Pools = Sequence[np.ndarray]  # the numbers of the records that can be drawn, label by label


@dataclass(frozen=True)
class Law:
    """How likely a record of one client has each of the labels."""

    labels: np.ndarray
    chances: np.ndarray

    def counts(self, wanted: int, there: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """How many records of each label, `wanted` in all: multinomial, but never more than `there` are.

        What a label cannot give is drawn again over the labels that still can, by their chances; where they have none, they
        are equally likely.
        """
        counts = np.zeros_like(there)
        while (missing := wanted - int(counts.sum())) > 0:
            left = counts < there
            likely = np.flatnonzero(left & (self.chances > 0))
            chances = self.chances[likely]
            if not len(likely):
                likely = np.flatnonzero(left)
                chances = np.ones(len(likely))
            counts[likely] += random.multinomial(missing, chances / chances.sum())
            counts = np.minimum(counts, there)
        return counts

    def drawn(self, wanted: int, pools: Pools, random: np.random.Generator) -> np.ndarray:
        """The numbers of `wanted` records, none twice."""
        counts = self.counts(wanted, np.array([len(pool) for pool in pools]), random)
        parts = [random.choice(pool, count, replace=False) for pool, count in zip(pools, counts, strict=True)]
        return np.sort(np.concatenate(parts))

    def tests(self, wanted: int, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """The numbers of records to test on by the same law; fewer where those with likely labels do not suffice."""
        pools = [
            pool if chance > 0 else pool[:0]
            for pool, chance in zip(by_label(labels, self.labels), self.chances, strict=True)
        ]
        return self.drawn(min(wanted, sum(map(len, pools))), pools, random)


def by_label(labels: np.ndarray, wanted: np.ndarray) -> Pools:
    """The numbers of the records with each of the wanted labels."""
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
) -> tuple[list[np.ndarray], list[Law]]:
    """Each client's records, and the law they were drawn by; client i by its own random numbers, `random_of(i)`.

    With overlap every client draws from all records; without, from those that earlier clients have left.
    """
    known = np.unique(labels)
    pools = by_label(labels, known)
    dealt, laws = [], []
    for client in range(clients):
        random = random_of(client)
        law = Law(known, random.dirichlet(np.full(len(known), concentration)))
        mine = law.drawn(records_each, pools, random)
        if not overlap:
            pools = [np.setdiff1d(pool, mine, assume_unique=True) for pool in pools]
        dealt.append(mine)
        laws.append(law)
    return dealt, laws
