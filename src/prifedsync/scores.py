"""Scores as plain values: of one client, of many, and with intervals. They are computed without noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95  # of all intervals
MEAN_OVER_CLIENTS = "mean over clients (each client counts once)"
MEAN_OVER_RECORDS = "mean over test records (each record counts once)"
NO_RECORDS = "no test records"
NOT_FINITE = "the model's outputs are not finite"
SCALED = "rmse"  # the metric that is measured in the unit of the label, which may be scaled

Values = tuple[float | None, ...]  # one score for each metric of a run; None: undefined


class Interval(NamedTuple):
    """The percentile interval of a bootstrap over test records, at `LEVEL`."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def minus(self, other: Interval) -> Interval:
        """Where a difference lies if both lie in their intervals."""
        return Interval(self.low - other.high, self.high - other.low)


def about_scale(metrics: Iterable[str], span: tuple[float, float] | None) -> str:
    """What errors are measured in, where the label's public range was scaled to [−1, 1]; otherwise nothing."""
    if span is None or SCALED not in metrics:
        return ""
    half = (span[1] - span[0]) / 2
    return f"{SCALED} is that of the label scaled to [−1, 1], as in training; times {half:g} it has its unit"


@dataclass(frozen=True)
class Measured:
    """One score of one model on the test records of one client, or of all clients.

    value     the score; None where it is undefined.
    interval  how much it varies with the choice of test records; None where that is not known.
    why       the reason why it is undefined.
    """

    value: float | None
    interval: Interval | None = None
    why: str = ""


@dataclass(frozen=True)
class Score:
    """The scores of one model, or of one model per client, over the clients that have a score.

    mean             mean over clients: each client counts once.
    worst            the worst client's.
    clients          how many clients are in both means; those whose score is undefined are left out.
    record_mean      mean over test records: each record counts once, so a client's score weighs as many as it has.
    records          how many test records are in it; None where that is not public, or there is no such mean.
    interval         of `mean`.
    record_interval  of `record_mean`.
    """

    mean: float | None
    worst: float | None
    clients: int
    record_mean: float | None = None
    records: int | None = None
    interval: Interval | None = None
    record_interval: Interval | None = None

    @staticmethod
    def over(values: Iterable[float | None], lower_is_better: bool, sizes: Sequence[int] = ()) -> Score:
        """Both means and the worst of clients' scores; without their numbers of test records, no mean over records."""
        every = list(values)
        places = [place for place, value in enumerate(every) if value is not None and math.isfinite(value)]
        known = [value for value in every if value is not None and math.isfinite(value)]
        if not known:
            return Score(None, None, 0)
        worst = max(known) if lower_is_better else min(known)
        mean = math.fsum(known) / len(known)
        if not sizes:
            return Score(mean, worst, len(known))
        records = [sizes[place] for place in places]
        total = math.fsum(size * value for size, value in zip(records, known, strict=True))
        return Score(mean, worst, len(known), total / sum(records), sum(records))


@dataclass(frozen=True)
class Scores:
    """The scores of one kind of model: on each client's own test records, and on all clients' test records together."""

    own: Score
    pooled: Score


@dataclass(frozen=True)
class Measurement:
    """One metric of one kind of model at the end of a run: client by client, and over all of them.

    resampled  of each client the score in every resample, NaN where it is undefined; None where there are none. Resamples
               are the same for all models of a run, so that scores can be subtracted one by one.
    """

    metric: str
    clients: tuple[Measured, ...]
    scores: Scores
    resampled: tuple[np.ndarray | None, ...] = field(default=(), repr=False, compare=False)
