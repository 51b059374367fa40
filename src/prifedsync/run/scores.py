"""Scores of a run's models on test records."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..engines import Cohort
from ..record import (
    Scores,
)
from .prepare import Prepared


def everywhere(prepared: Prepared, cohort: Cohort) -> list[float | None]:
    """Each client's own model on everybody's test records; those that never took part all have the first one."""
    trained = [i for i, rounds in enumerate(cohort.taken) if rounds]
    models = (cohort.personal(i).value for i in trained)
    found = dict(zip(trained, prepared.scorer.everybody(models), strict=True))
    first = prepared.scorer.everybody([cohort.start])[0] if 0 in cohort.taken else None
    return [found.get(i, first) for i in range(len(prepared.jobs))]


def scores_of_own(prepared: Prepared, cohort: Cohort, clients: Sequence[int]) -> list[float | None]:
    """Each of these clients' personal models on its own test records."""
    return prepared.scorer.own(lambda i: cohort.personal(i).value, clients)


def scores_of_one(prepared: Prepared, weights: Tensor) -> Scores:
    return Scores(prepared.score(prepared.scorer.each(weights)), prepared.score(prepared.scorer.everybody([weights])))
