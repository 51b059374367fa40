"""Scores of answers with intervals, client by client and over all clients: at the end of a run, and of other records.

Intervals are percentiles of a bootstrap over test records. They say how much a score varies with the choice of test
records, not how much it varies with the noise of another run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..scores import LEVEL, NO_RECORDS, NOT_FINITE, Interval, Measured, Measurement, Score, Scores
from .metric import Metric, each_record, scores
from .resampling import Resampling
from .statistics import statistic_of

Array = np.ndarray
TAIL = (1 - LEVEL) / 2
ALIKE = 1e-12  # ends so close, relative to their size, differ by rounding only
DEFINED = 0.5  # share of the resamples that must have a score, or there is no interval


def measured(
    metrics: Sequence[Metric], outputs: Tensor, y: Tensor, sizes: Sequence[int], *,
    seed: int = 0, groups: Sequence[Tensor | Array] | None = None,
) -> tuple[Measurement, ...]:  # fmt: skip
    """Each metric of what a model, or each client's own model, answered to the clients' test records.

    outputs, y  the answers and labels of all clients' records, client by client.
    sizes       the number of records of each client; for one table of records [len(y)].
    seed        of the resamples: the same seed gives the same resamples for every model.
    groups      the person of each record, a tensor for each client: whole persons are resampled then.
    """
    if not len(y):
        nothing = Score(None, None, 0)
        undefined = tuple(Measured(None, None, NO_RECORDS) for _ in sizes)
        return tuple(Measurement(metric.name, undefined, Scores(nothing, nothing)) for metric in metrics)
    places = _scored(outputs, sizes)
    kept = np.repeat(np.isin(np.arange(len(sizes)), places), sizes)
    some = torch.from_numpy(kept).to(outputs.device)
    people = None if groups is None else [np.asarray(groups[place]) for place in places]
    resampling = Resampling([sizes[place] for place in places], seed, people)
    whole = _all_tested(sizes, seed, groups)
    resamples = (each if kept.all() else each[:, kept] for each in whole.weights())
    drawn = _drawn(metrics, outputs[some], y[some], resampling.sizes, resamples)
    found: list[Measurement] = []
    for metric, rows in zip(metrics, drawn, strict=True):
        own, pooled, means = _intervals(metric, outputs[some], y[some], resampling, rows)
        one = _measurement(metric, outputs, y, sizes, dict(zip(places, own, strict=True)), pooled, means)
        if rows and not found:  # of the first metric, which is compared between models
            columns = dict(zip(places, rows[0].T, strict=True))
            one = replace(one, resampled=tuple(columns.get(place) for place in range(len(sizes))))
        found.append(one)
    return tuple(found)


def differences(one: Measurement, other: Measurement) -> tuple[Interval | None, ...]:
    """The interval of each client's score by one model less that by another, over the same resamples.

    Where the difference does not vary, as between models that are right and wrong on every record, both scores' own
    intervals say how far it may be from there.
    """
    if not one.resampled or not other.resampled:
        return (None,) * len(one.clients)
    return tuple(map(_difference, one.clients, other.clients, one.resampled, other.resampled))


def _difference(one: Measured, other: Measured, drawn: Array | None, others: Array | None) -> Interval | None:
    if one.value is None or other.value is None or drawn is None or others is None:
        return None
    (found,) = _percentiles((drawn - others)[:, None])
    return found or (one.interval.minus(other.interval) if one.interval and other.interval else None)


def _all_tested(sizes: Sequence[int], seed: int, groups: Sequence[Tensor | Array] | None) -> Resampling:
    """Resamples of everybody's records: a model that diverged at one client has those of the other models at the rest."""
    tested = [place for place, size in enumerate(sizes) if size]
    people = None if groups is None else [np.asarray(groups[place]) for place in tested]
    return Resampling([sizes[place] for place in tested], seed, people)


def _scored(outputs: Tensor, sizes: Sequence[int]) -> list[int]:
    """The clients that have test records, and a model whose answers are finite."""
    finite = torch.isfinite(outputs).reshape(sum(sizes), -1).all(1).cpu()
    parts = finite.split(list(sizes))
    return [place for place, part in enumerate(parts) if len(part) and bool(part.all())]


def _measurement(
    metric: Metric, outputs: Tensor, y: Tensor, sizes: Sequence[int], intervals: dict[int, Interval | None],
    pooled: Interval | None, means: tuple[Interval | None, Interval | None],
) -> Measurement:  # fmt: skip
    values = [_known(value) for value in scores(metric, outputs, y, sizes).tolist()]
    clients = []
    for place, (value, size) in enumerate(zip(values, sizes, strict=True)):
        if value is not None:
            clients.append(Measured(value, intervals.get(place)))
        else:
            why = NO_RECORDS if not size else metric.undefined if place in intervals else NOT_FINITE
            clients.append(Measured(None, None, why))
    own = Score.over(values, metric.lower_is_better, sizes)
    own = replace(own, interval=means[0], record_interval=means[1]) if own.clients else own
    return Measurement(metric.name, tuple(clients), Scores(own, _together(metric, outputs, y, pooled)))


def _together(metric: Metric, outputs: Tensor, y: Tensor, interval: Interval | None) -> Score:
    """The score of all records together, as if one client had them."""
    (value,) = map(_known, scores(metric, outputs, y, [len(y)]).tolist())
    if value is None:
        return Score(None, None, 0)
    return Score(value, value, 1, value, len(y), interval, interval)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------------- intervals

Found = tuple[list[Interval | None], Interval | None, tuple[Interval | None, Interval | None]]


Rows = tuple[Array, Array, Array]  # over resamples: each client's score, that of all records together, and both means


def _drawn(
    metrics: Sequence[Metric], outputs: Tensor, y: Tensor, counts: Sequence[int], resamples: Iterable[Array]
) -> list[Rows | None]:
    """For each metric its scores in all resamples; None where it has no weights."""
    if not len(y):
        return [None] * len(metrics)
    sizes = np.array(counts, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    together = np.zeros(1, dtype=np.int64)
    both = [[statistic_of(metric, outputs, y, each) for each in (starts, together)] for metric in metrics]
    drawn: list[list[Rows]] = [[] for _ in metrics]
    for weights in resamples if any(own for own, _ in both) else ():
        totals = np.add.reduceat(weights, starts, axis=1)
        for rows, (own, pooled) in zip(drawn, both, strict=True):
            if own and pooled:
                scored = own(weights)
                rows.append((scored, pooled(weights), _means(scored, totals)))
    return [_together_of(rows) if rows else None for rows in drawn]


def _together_of(parts: Sequence[Rows]) -> Rows:
    own, pooled, means = (np.concatenate(part) for part in zip(*parts, strict=True))
    return own, pooled, means


def _intervals(metric: Metric, outputs: Tensor, y: Tensor, resampling: Resampling, drawn: Rows | None) -> Found:
    """Of each client's score, of all records together, and of both means."""
    if drawn is None:
        return [None] * len(resampling.sizes), None, (None, None)
    own, pooled, means = map(_percentiles, drawn)
    found: Found = own, pooled[0], (means[0], means[1])
    if not metric.mean or metric.root:
        return found
    return _of_proportions(each_record(metric, outputs, y).cpu().numpy(), resampling, found)


def _means(own: Array, totals: Array) -> Array:
    """The mean over clients and the mean over records of each resample, [r, 2]; undefined scores are left out."""
    defined = ~np.isnan(own)
    values = np.where(defined, own, 0.0)
    with np.errstate(invalid="ignore"):
        over_clients = values.sum(1) / defined.sum(1)
        over_records = (values * totals).sum(1) / (defined * totals).sum(1)
    return np.stack([over_clients, over_records], axis=1)


def _percentiles(values: Array) -> list[Interval | None]:
    """The interval of each column, over the resamples in which it is defined; none where they do not vary.

    A point would say that nothing is in doubt, as of a perfect score on three records.
    """
    ordered = np.sort(values, axis=0)  # NaN comes last
    counts = (~np.isnan(values)).sum(0)
    ends = []
    for share in (TAIL, 1 - TAIL):
        place = share * np.maximum(counts - 1, 0)
        low = np.floor(place).astype(np.int64)
        high = np.ceil(place).astype(np.int64)
        columns = np.arange(values.shape[1])
        ends.append(ordered[low, columns] + (place - low) * (ordered[high, columns] - ordered[low, columns]))
    varied = ends[1] - ends[0] > ALIKE * np.abs(ends[1])  # false where they are undefined
    enough = varied & (counts >= DEFINED * len(values))
    return [Interval(float(low), float(high)) if ok else None for low, high, ok in zip(*ends, enough.tolist(), strict=True)]


def _of_proportions(ones: Array, resampling: Resampling, found: Found) -> Found:
    """Where all records are right, or all are wrong, resamples are all alike: take the exact end for so many instead.

    The mean over clients takes that for the smallest client's number at each of them. Of clients with n_i records each, all
    are right with probability Π p_i^n_i ≤ Π p_i^n, n the smallest n_i, and this is at most m^(C·n) for a mean p_i of m.
    """
    if not np.isin(ones, (0.0, 1.0)).all():
        return found
    own, pooled, means = found
    parts = np.split(ones, np.cumsum(resampling.sizes)[:-1])
    own = [_exact(part, units) or each for part, units, each in zip(parts, resampling.units, own, strict=True)]
    units = resampling.units
    every = _exact(ones, sum(units))
    over_clients = _exact(ones, len(units) * min(units))
    return own, every or pooled, (over_clients or means[0], every or means[1])


def _exact(ones: Array, units: int) -> Interval | None:
    """Clopper and Pearson 1934, for n of n and 0 of n; a person counts as one."""
    if ones.all():
        return Interval(TAIL ** (1 / units), 1.0)
    return None if ones.any() else Interval(0.0, 1 - TAIL ** (1 / units))
