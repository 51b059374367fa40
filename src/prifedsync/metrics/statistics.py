"""Scores of weighted records, for many rows of weights at once: what a bootstrap needs of a metric.

Records of clients stand one after another, and `starts` [C] says where each client's begin; no client has none. Weights are
[r, N], scores [r, C], NaN where a score is undefined. With weights of 1 a score is the metric's own. Whatever does not
depend on the weights, such as an order of records, is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from .metric import Metric, auc, each_record, f1, guessed_class, one_score

Array = np.ndarray
Statistic = Callable[[Array], Array]  # weights → scores


def statistic_of(metric: Metric, outputs: Tensor, y: Tensor, starts: Array) -> Statistic | None:
    """The weighted score of these answers. None: the metric is a function of all records, and knows no weights."""
    if metric.mean:
        values = each_record(metric, outputs, y).cpu().numpy()
        return lambda weights: _mean(values, weights, starts, metric.root)
    if metric.of is auc:
        return _auc_of(one_score(outputs, y).double().cpu().numpy(), y.cpu().numpy() > 0.5, starts)
    if metric.of is f1:
        return _f1_of(outputs, y, starts)
    return None


def _sums(values: Array, starts: Array) -> Array:
    return np.add.reduceat(values, starts, axis=1)


def _ratio(upper: Array, lower: Array) -> Array:
    """NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = upper / lower
    return np.where(lower > 0, found, np.nan)


def _mean(values: Array, weights: Array, starts: Array, root: bool) -> Array:
    means = _ratio(_sums(weights * values, starts), _sums(weights, starts))
    return np.sqrt(means) if root else means


def _auc_of(score: Array, positive: Array, starts: Array) -> Statistic:
    """The weighted share of pairs in which the positive record has the higher score; a tie counts one half."""
    client = np.searchsorted(starts, np.arange(len(score)), side="right")
    order = np.lexsort((score, client))
    changes = (np.diff(client[order]) != 0) | (np.diff(score[order]) != 0)
    ties = np.concatenate([[0], np.flatnonzero(changes) + 1])  # where records of one client and score begin
    first = np.searchsorted(ties, starts)  # the lowest score of each client
    of_client = np.repeat(np.arange(len(starts)), np.diff([*first, len(ties)]))
    positive = positive[order]

    def of(weights: Array) -> Array:
        ordered = weights[:, order]
        ups = _sums(ordered * positive, ties)
        downs = _sums(ordered * ~positive, ties)
        below = np.cumsum(downs, axis=1) - downs  # negative records with lower scores, those of clients before included
        won = _sums(ups * (below - below[:, first][:, of_client] + downs / 2), first)
        return _ratio(won, _sums(ups, first) * _sums(downs, first))

    return of


def _f1_of(outputs: Tensor, y: Tensor, starts: Array) -> Statistic:
    """F1 of the positive class, or the mean over the classes that are present."""
    if outputs.dim() == 2 and outputs.shape[1] > 2:
        guesses = guessed_class(outputs).cpu().numpy()
        labels = y.cpu().numpy()
        classes = [(guesses == label, labels == label) for label in np.unique(labels)]
        return lambda weights: _mean_f1(classes, weights, starts)
    guessed = (one_score(outputs, y) > 0).cpu().numpy()
    true = (y > 0.5).cpu().numpy()
    return lambda weights: _f1(guessed, true, weights, starts)


def _f1(guessed: Array, true: Array, weights: Array, starts: Array) -> Array:
    both = _sums(weights * (guessed & true), starts)
    return _ratio(2 * both, _sums(weights * guessed, starts) + _sums(weights * true, starts))


def _mean_f1(classes: Iterable[tuple[Array, Array]], weights: Array, starts: Array) -> Array:
    total = np.zeros((len(weights), len(starts)))
    present = np.zeros((len(weights), len(starts)))
    for guessed, true in classes:
        there = _sums(weights * true, starts) > 0
        total += np.where(there, _f1(guessed, true, weights, starts), 0.0)
        present += there
    return _ratio(total, present)
