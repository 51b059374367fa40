"""Privacy profiles in closed form: δ(ε) of one pair of distributions, in each of its two orders.

Notation
    (P, Q)      the pair; the trade-off function is f = T(P, Q), P the null
    L           log dQ/dP, the privacy loss
    δ(ε)        sup over events A of Q(A) − e^ε P(A) = 1 + f*(−e^ε)          (Dong, Roth, Su 2022, Prop. 2.12)
    P-tail(ε)   P(L > ε) = −dδ/d(e^ε); it is stored times e^ε, so that nothing overflows
    Half        δ and e^ε·P-tail for ε ≥ 0, in one order of the pair. The other order is another Half, because
                δ(−ε) = 1 − e^−ε + e^−ε δ_reversed(ε). Two halves at ε ≥ 0 keep full relative precision in both
                tails; second differences of δ ≈ 1 would give spurious mass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import erfcx, ndtr

from .bounds import Array

SQRT_HALF_PI = float(np.sqrt(np.pi / 2))
SQRT_TWO_PI = float(np.sqrt(2 * np.pi))


class Half(ABC):
    """One order of a pair: `at(eps)` for an array of ε ≥ 0 gives (δ, e^ε·P-tail)."""

    @abstractmethod
    def at(self, eps: Array) -> tuple[Array, Array]: ...

    @property
    def limit(self) -> float:
        """δ(∞): the mass of Q where P has none."""
        return 0.0

    @property
    def accuracy(self) -> float:
        """A bound on the relative rounding error of δ."""
        return 1e-14

    @property
    def kink(self) -> float | None:
        """An ε > 0 where the loss has an atom. A lattice with a node there is more accurate."""
        return None


def _mills(z: Array) -> Array:
    """Φ(z)/φ(z) for z ≤ 0, without underflow."""
    return np.asarray(SQRT_HALF_PI * erfcx(-z / np.sqrt(2)))


def _density(z: Array) -> Array:
    return np.asarray(np.exp(-0.5 * z * z) / SQRT_TWO_PI)


@dataclass(frozen=True)
class GaussianHalf(Half):
    """N(μ, 1) against N(0, 1): δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)."""

    mu: float

    def at(self, eps: Array) -> tuple[Array, Array]:
        a, b = -eps / self.mu + self.mu / 2, -eps / self.mu - self.mu / 2
        density, mills_b = _density(a), _mills(b)
        tail = density * mills_b  # e^ε φ(b) = φ(a)
        delta = np.where(a < 0, density * (_mills(np.minimum(a, 0.0)) - mills_b), ndtr(a) - tail)
        return np.maximum(delta, 0.0), tail

    @property
    def accuracy(self) -> float:
        # the difference of two Mills ratios a distance μ apart; and e^(−a²/2), a = μ/2 − ε/μ, down to 1e−300
        return 2e-14 * (1 + 1 / self.mu) + 2.3e-16 * (3000 + 80 * self.mu)


@dataclass(frozen=True)
class LaplaceHalf(Half):
    """Lap(1, b) against Lap(0, b), ε₀ = 1/b: δ(ε) = 1 − e^((ε−ε₀)/2) up to ε₀, then 0."""

    ceiling: float

    def at(self, eps: Array) -> tuple[Array, Array]:
        below = eps < self.ceiling
        gap = np.where(below, (eps - self.ceiling) / 2, 0.0)
        return 0.0 - np.expm1(gap), np.where(below, 0.5 * np.exp(gap), 0.0)

    @property
    def kink(self) -> float | None:
        return self.ceiling


@dataclass(frozen=True)
class EpsilonDeltaHalf(Half):
    """The pair that attains (ε₀, δ₀)-DP: a complete leak with probability δ₀, otherwise randomised response."""

    epsilon: float
    delta: float

    def at(self, eps: Array) -> tuple[Array, Array]:
        gap = np.maximum(self.epsilon - eps, 0.0)
        weight = (1 - self.delta) / (1 + np.exp(-self.epsilon))
        tail = np.where(gap > 0, weight * np.exp(-gap), 0.0)
        return self.delta - weight * np.expm1(-gap), tail

    @property
    def limit(self) -> float:
        return self.delta

    @property
    def kink(self) -> float | None:
        return self.epsilon or None


@dataclass(frozen=True)
class PointsHalf(Half):
    """The convex trade-off function through given points: δ(ε) = max over points of 1 − β − e^ε α."""

    points: tuple[tuple[float, float], ...]  # (α, β) with α rising from 0, convex, ending at β = 0

    def at(self, eps: Array) -> tuple[Array, Array]:
        alpha, beta = np.array(self.points).T
        steepness = -np.diff(beta) / np.diff(alpha)  # falling: the best point is where it passes e^ε
        growth = np.exp(np.minimum(eps, 700.0))
        best = np.searchsorted(-steepness, -growth)
        tail = growth * alpha[best]
        return np.maximum(1 - beta[best] - tail, self.limit), tail

    @property
    def limit(self) -> float:
        return 1 - self.points[0][1]

    @property
    def accuracy(self) -> float:
        return 1e-12


@dataclass(frozen=True)
class SubsampledHalf(Half):
    """(1−q)P + qQ against P: δ(ε) = q·δ_f(log(1 + (e^ε − 1)/q)) for ε ≥ 0 (Dong, Roth, Su 2022, Sec. 4)."""

    inner: Half
    rate: float

    def at(self, eps: Array) -> tuple[Array, Array]:
        q = self.rate
        near = np.log1p(np.expm1(np.minimum(eps, 1.0)) / q)
        stretched = np.where(eps < 1.0, near, eps - np.log(q) + np.log1p(-(1 - q) * np.exp(-eps)))
        delta, tail = self.inner.at(stretched)
        return q * delta, tail * np.exp(eps - stretched)

    @property
    def limit(self) -> float:
        return self.rate * self.inner.limit

    @property
    def accuracy(self) -> float:
        return 2 * self.inner.accuracy


@dataclass(frozen=True)
class UnsampledHalf(Half):
    """P against (1−q)P + qQ, the reverse of `SubsampledHalf`; its loss never exceeds −log(1−q)."""

    inner: Half  # the reversed order of the pair (P, Q)
    rate: float

    def at(self, eps: Array) -> tuple[Array, Array]:
        q = self.rate
        rest = -np.expm1(eps + np.log1p(-q))  # 1 − e^ε(1−q)
        inside = rest > 0
        rest = np.where(inside, rest, 1.0)
        delta, tail = self.inner.at(np.where(inside, np.log(q) + eps - np.log(rest), 0.0))
        slope = (1 - rest) * delta + tail  # −e^ε d/d(e^ε) of rest·δ(stretched)
        return np.where(inside, rest * delta, 0.0), np.where(inside, slope, 0.0)

    @property
    def accuracy(self) -> float:
        return 2 * self.inner.accuracy + 1e-13


@dataclass(frozen=True)
class AntipodalHalf(Half):
    """(1−q)N(0, s²) + qN(−1, s²) against (1−q)N(0, s²) + qN(1, s²): Poisson batches, one record replaced.

    With x = e^ε, c = e^(−1/2s²) and t = e^(z/s²), the likelihood ratio at z is x exactly where
    x·q·c·t² + (x−1)(1−q)·t − q·c = 0; the event is z below that root. At the root the three weighted densities
    cancel, which turns δ into a sum of two positive terms. Why this pair dominates: docs/maths.md.
    """

    spread: float
    rate: float

    def at(self, eps: Array) -> tuple[Array, Array]:
        s, q = self.spread, self.rate
        # the quadratic divided by x, so that a large ε does not overflow
        shrink, pull = -np.expm1(-eps) * (1 - q), 2 * q * np.exp(-0.5 / s**2)
        log_t = np.log(pull) - eps - np.log(shrink + np.sqrt(shrink**2 + pull**2 * np.exp(-eps)))
        z = np.minimum(log_t, 0.0) * s
        near, far = z + 1 / s, z - 1 / s
        mills, mills_far = _mills(z), _mills(far)
        density_near, density_far = _density(near), np.exp(eps - 0.5 * far * far) / SQRT_TWO_PI
        near_part = np.where(
            near < 0, density_near * (_mills(np.minimum(near, 0.0)) - mills), ndtr(near) - density_near * mills
        )
        delta = q * near_part + q * density_far * (mills - mills_far)
        tail = (1 - q) * np.exp(eps - 0.5 * z * z) / SQRT_TWO_PI * mills + q * density_far * mills_far
        return np.maximum(delta, 0.0), tail

    @property
    def accuracy(self) -> float:
        return 1e-13 * (8 + self.spread)


@dataclass(frozen=True)
class WorseHalf(Half):
    """The larger of two profiles: the profile of min{f, g}**."""

    one: Half
    other: Half

    def at(self, eps: Array) -> tuple[Array, Array]:
        (delta_1, tail_1), (delta_2, tail_2) = self.one.at(eps), self.other.at(eps)
        return np.maximum(delta_1, delta_2), np.where(delta_1 >= delta_2, tail_1, tail_2)

    @property
    def limit(self) -> float:
        return max(self.one.limit, self.other.limit)

    @property
    def accuracy(self) -> float:
        return max(self.one.accuracy, self.other.accuracy)


@dataclass(frozen=True)
class Profile:
    """Both orders of a pair: `forward` is T(P, Q), `backward` its inverse T(Q, P)."""

    forward: Half
    backward: Half

    @property
    def symmetric(self) -> bool:
        return self.forward == self.backward

    def reversed(self) -> Profile:
        return Profile(self.backward, self.forward)

    def worse(self) -> Half:
        """The larger δ of the two orders, at every ε."""
        return self.forward if self.symmetric else WorseHalf(self.forward, self.backward)


def both_ways(half: Half) -> Profile:
    return Profile(half, half)


@lru_cache(maxsize=256)  # both sides of a lattice ask for it, and so does every step that is tried
def reach(half: Half, cut: float) -> float:
    """An ε beyond which δ(ε) − δ(∞) is below `cut`. It is at most 1 % larger than the smallest such ε."""

    def excess(eps: float) -> float:
        return float(half.at(np.array([eps]))[0][0]) - half.limit

    high = 1e-6
    while excess(high) > cut:
        high *= 2
        if high > 1e12:
            raise OverflowError("the privacy loss of one mechanism is not bounded well enough to compute with")
    low = high / 2
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > cut else (low, middle)
    return high
