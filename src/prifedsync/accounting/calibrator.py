"""Calibration of many plans: those that differ in their sampling rate alone start from each other's answers."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import exp, log
from typing import NamedTuple

from .calibrate import CannotMeet, LeastNoise, Start, Target
from .plan import Participation, PrivacyPlan

USUAL_SLOPE = 1.5  # −d log(loss)/d log(noise) where none was measured
FARTHEST = log(2.0)  # how far the log of an expected answer may be from the nearest known one


class Known(NamedTuple):
    """An answer: at this log rate, the log of the noise that a search aims at, and the slope of the loss there."""

    rate: float
    noise: float
    slope: float


class Calibrator:
    """Finds the least noise for many plans. Every answer is verified as that of `calibrated` is.

    Plans with the same guarantee share an answer: with full batches the number of records does not enter. Noise is smooth
    in the sampling rate. So what is known of neighbouring rates predicts it, and one evaluation usually confirms it.
    An answer depends, within the 0.1 % that every answer has, on the plans before it: ask in the same order to repeat one.
    """

    def __init__(self, target: Target, participation: Participation = "honest") -> None:
        self.target = target
        self.participation: Participation = participation
        self._answers: dict[PrivacyPlan, float | CannotMeet] = {}
        self._families: dict[Hashable, list[Known]] = {}  # rising in the rate

    def __call__(self, plan: PrivacyPlan) -> PrivacyPlan:
        """A new plan that meets the target. Raises `CannotMeet` with the reason if there is none."""
        asked = plan.accounted.changed(noise_multiplier=1.0)
        if asked not in self._answers:
            self._answers[asked] = self._answer(asked)
        answer = self._answers[asked]
        if isinstance(answer, CannotMeet):
            raise answer
        return plan.changed(noise_multiplier=answer)

    def _answer(self, plan: PrivacyPlan) -> float | CannotMeet:
        def spent(noise: float) -> float:
            return self.target.spent(plan.changed(noise_multiplier=noise).guarantee(self.participation))

        search = LeastNoise(spent, self.target.value)
        family, rate = _family(plan)
        known = self._families.setdefault(family, []) if family is not None else []
        start = _expected(known, rate) if known else None
        try:
            noise = search.found(start)
        except CannotMeet as reason:
            return reason
        slope = search.slope or (start.slope if start else USUAL_SLOPE)
        if search.high_spent > 0:
            insort(known, Known(rate, log(noise) + log(search.high_spent / search.aim) / slope, slope))
        return noise


def _family(plan: PrivacyPlan) -> tuple[Hashable, float]:
    """What a plan shares with its neighbours, and its log rate; None where the mechanism has no rate."""
    steps = plan.mechanism.steps
    if steps is None or steps is not plan.mechanism:
        return None, 0.0
    alike = replace(steps, noise_multiplier=1.0, records=1, batch="full", clip_margin=0.0)
    return (replace(plan, mechanism=alike), steps.rate == 1), log(steps.rate)


def _expected(known: Sequence[Known], rate: float) -> Start:
    """The noise that neighbouring rates lead to expect: a polynomial in logarithms through up to two on either side."""
    place = bisect(known, rate, key=lambda each: each.rate)
    left, right = known[max(0, place - 2) : place], known[place : place + 2]
    nearest = min([*left, *right], key=lambda each: abs(each.rate - rate))
    points = {each.rate: each.noise for each in [*left, *right]}
    noise = _through(points, rate)
    noise = min(max(noise, nearest.noise - FARTHEST), nearest.noise + FARTHEST)
    return Start(exp(noise), nearest.slope)


def _through(points: dict[float, float], at: float) -> float:
    """Lagrange's polynomial through these points."""
    total = 0.0
    for one, value in points.items():
        for other in points:
            if other != one:
                value *= (at - other) / (one - other)
        total += value
    return total
