"""How many rows a batch has, padding included: one public number for all clients of a kind, whatever batches come out.

The realised size of a Poisson batch, and under add-remove neighbours the number of records, are private, and a kernel may
round otherwise where there is a row more. So batches are padded to this many rows, and larger ones are taken in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from ..accounting import Sampling
from ..local import Job
from ..local.batches import expected_size
from ..local.net.programs import ROWS

PIECE_COST = 4  # what a piece costs besides its rows, in rows
MANY_PIECES = 8  # where the last piece hardly matters, and as many rows are taken at once as may be


def width_of(jobs: Sequence[Job], at_once: int) -> int:
    """Rows of a compiled program on a device: so many that few Poisson batches need a second piece."""
    widest = max(expected_size(job.steps) for job in jobs)
    if _is_poisson(jobs):
        spread = max(expected_size(job.steps) * (1 - job.steps.rate) for job in jobs)
        rows = ROWS * math.ceil((widest + 3.5 * math.sqrt(spread)) / ROWS)
        widest = min(rows, max(job.steps.records for job in jobs))
    return min(widest, at_once)


def cheapest_width(jobs: Sequence[Job], clients: int, at_once: int) -> int:
    """Rows on a host, where padding costs as much as records do: what is least on average for so many stacked clients."""
    if not _is_poisson(jobs):
        return min(max(expected_size(job.steps) for job in jobs), at_once)
    largest = max(jobs, key=lambda job: expected_size(job.steps)).steps
    if expected_size(largest) > MANY_PIECES * at_once:
        return at_once
    most = min(at_once, max(job.steps.records for job in jobs))
    likely = int(stats.binom.isf(1e-9, largest.records, largest.rate))

    def cost(rows: int) -> float:
        taken = np.arange(0, likely + 1, rows)  # before the first piece, before the second, …
        fits = stats.binom.cdf(taken, largest.records, largest.rate) ** clients  # the largest of their batches
        return float(np.sum(1 - fits)) * (rows + PIECE_COST)

    candidates = [min(rows, most) for rows in range(ROWS, most + ROWS, ROWS)]
    return min(candidates, key=cost)


def packed_width(units: int, most_rows: int, at_once: int) -> int:
    """Rows of a piece where units are persons with at most so many rows: room for `units` of them with two rows each.

    How many rows persons have is private. So persons with more rows take more pieces. Rows are paired in blocks of
    `most_rows` (`local/net/persons.py`), and a piece is made of whole blocks.
    """
    blocks = math.ceil((2 * units + most_rows - 1) / most_rows)
    return most_rows * max(2, min(blocks, at_once // most_rows))


def _is_poisson(jobs: Sequence[Job]) -> bool:
    return any(job.steps.batch != "full" and job.steps.sampling is Sampling.POISSON for job in jobs)
