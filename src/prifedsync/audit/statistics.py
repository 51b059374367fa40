"""Statistical tests, exact where an exact one exists; each rejects a correct engine with probability CHANCE at most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ..accounting.mechanisms import NoiseLaw
from .check import CHANCE

TAILS = (2.0, 3.0, 4.0)  # in standard deviations of the normal; the Laplace tail of the same mass


def standard(law: NoiseLaw) -> stats.rv_continuous:
    return stats.norm if law == "gaussian" else stats.laplace


def magnitude(values: np.ndarray, law: NoiseLaw, axis: int | None = None) -> tuple[np.ndarray, int]:
    """A sum that is χ² distributed if the scale is 1, and its degrees of freedom: Σz², or 2Σ|z| for Laplace."""
    count = values.size if axis is None else values.shape[axis]
    if law == "gaussian":
        return np.sum(values**2, axis=axis), count
    return 2 * np.sum(np.abs(values), axis=axis), 2 * count


def scale(values: np.ndarray, law: NoiseLaw) -> float:
    """The estimated scale of the values; it should be 1."""
    total, freedom = magnitude(values, law)
    return math.sqrt(total / freedom) if law == "gaussian" else float(total / freedom)


def scale_range(count: int, law: NoiseLaw) -> tuple[float, float]:
    """The interval that holds the estimated scale of this many values, except with probability CHANCE."""
    freedom, power = (count, 0.5) if law == "gaussian" else (2 * count, 1.0)
    low, high = float(stats.chi2.ppf(CHANCE / 2, freedom)), float(stats.chi2.isf(CHANCE / 2, freedom))
    return math.pow(low / freedom, power), math.pow(high / freedom, power)


def scale_chances(values: np.ndarray, law: NoiseLaw) -> np.ndarray:
    """The p-value of the scale of each column, [columns]."""
    total, freedom = magnitude(values, law, axis=0)
    return np.asarray(2 * np.minimum(stats.chi2.cdf(total, freedom), stats.chi2.sf(total, freedom)))


def shape_chance(values: np.ndarray, law: NoiseLaw) -> float:
    """The p-value of the Kolmogorov–Smirnov test."""
    return float(stats.kstest(values, standard(law).cdf, method="asymp").pvalue)


def tail_chance(values: np.ndarray, law: NoiseLaw) -> float:
    """The smallest p-value of the tail counts, corrected for their number."""
    found = []
    for tail in TAILS:
        mass = 2 * stats.norm.sf(tail)
        beyond = int(np.sum(np.abs(values) > standard(law).isf(mass / 2)))
        found.append(stats.binomtest(beyond, values.size, mass).pvalue)
    return float(min(1.0, len(TAILS) * min(found)))


def normal_scores(values: np.ndarray, law: NoiseLaw) -> np.ndarray:
    """The values transformed to normal ones."""
    return values if law == "gaussian" else np.sign(values) * stats.norm.isf(0.5 * np.exp(-np.abs(values)))


def correlation(rows: np.ndarray) -> tuple[float, float]:
    """The largest correlation between two rows of standard normals, and its p-value over all pairs.

    The squared cosine of two independent normal vectors of length P is Beta(1/2, (P − 1)/2).
    """
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)  # without noise, a row is zero
    unit = rows / lengths
    cosines = np.abs(unit @ unit.T)[np.triu_indices(len(rows), 1)]
    largest = float(np.max(cosines))
    alone = stats.beta.sf(min(largest**2, 1.0), 0.5, (rows.shape[1] - 1) / 2)
    return largest, float(min(1.0, len(cosines) * alone))


def repetition(rows: np.ndarray) -> tuple[int, float]:
    """The distance at which the signs of entries of one row agree least like fair coins, and its p-value.

    At a fixed distance L the products of the signs of i and i + L, i + L and i + 2L, … are independent fair signs, so
    the number of agreements is exactly binomial. Entries, blocks or halves that are repeated agree at their distance.
    """
    width = rows.shape[1]
    power = np.zeros(width + 1)
    for row in rows:  # one at a time: a model may have millions of entries
        signs = np.where(row > 0, 1.0, -1.0)
        power += np.abs(np.fft.rfft(signs, 2 * width)) ** 2
    products = np.round(np.fft.irfft(power, 2 * width)[1:width])
    pairs = len(rows) * np.arange(width - 1, 0, -1)
    chances = fair_chances((pairs + products) / 2, pairs)
    worst = int(np.argmin(chances))
    return worst + 1, float(min(1.0, len(chances) * chances[worst]))


def agreement(rows: np.ndarray) -> float:
    """The p-value of the two rows whose signs agree most often or least often."""
    signs = np.where(rows > 0, 1.0, -1.0)
    width = rows.shape[1]
    products = np.round(signs @ signs.T)[np.triu_indices(len(rows), 1)]
    chances = fair_chances((width + products) / 2, np.full(len(products), width))
    return float(min(1.0, len(chances) * np.min(chances, initial=1.0)))


def fair_chances(happened: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The two-sided p-values of counts of fair coins."""
    farther = np.maximum(happened, trials - happened)
    return np.asarray(np.minimum(1.0, 2 * stats.binom.sf(farther - 1, trials, 0.5)))


@dataclass(frozen=True)
class Binomial:
    """The binomial distribution."""

    trials: int
    rate: float

    @property
    def variance(self) -> float:
        return self.trials * self.rate * (1 - self.rate)

    @property
    def masses(self) -> np.ndarray:
        return np.asarray(stats.binom.pmf(np.arange(self.trials + 1), self.trials, self.rate))


@dataclass(frozen=True)
class Event:
    """An event that should happen with a known probability in each of many independent trials."""

    what: str
    happened: int
    trials: int
    expected: float

    @property
    def chance(self) -> float:
        if not 0 <= self.happened <= self.trials:  # an impossible count
            return 0.0
        return float(stats.binomtest(self.happened, self.trials, self.expected).pvalue)

    def __str__(self) -> str:
        return f"{self.what}: {self.happened / self.trials:.4g}, expected {self.expected:.4g}"
