"""Trade-off functions as values: build them, subsample, mix, compose, and ask what they promise.

f(α) is the least type-II error of any test of type-I error α between two neighbouring data sets (Dong, Roth, Su 2022).
Neighbours are an unordered pair, so δ, ε, μ, the total variation and the attacks below always take the worse of the two
orders; f itself is T(P, Q), `inverse()` is T(Q, P), and `symmetrised()` is min{f, f⁻¹}**, which holds for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from .certify import Certified, OneSide
from .lattice import Side, discretise, masses, nodes
from .law import Factor, Leaf, Mixture, Product
from .profile import (
    AntipodalHalf,
    EpsilonDeltaHalf,
    GaussianHalf,
    Half,
    LaplaceHalf,
    PointsHalf,
    Profile,
    SubsampledHalf,
    UnsampledHalf,
    WorseHalf,
    both_ways,
    reach,
)
from .values import Array, BadValue, Bound, number, whole

DEFAULT_TOLERANCE = 1e-4  # bracket in ε at δ = 1e−5 that a composition aims at (relative where ε < 1)
LEAST_NOISE = 0.05  # noise_multiplier below this protects nobody (ε of hundreds) and underflows


class Neighbours(Enum):
    """Which data sets must look alike: one record replaced, or one record added or removed."""

    REPLACE = "replace"
    ADD_REMOVE = "add-remove"


class Answer(Enum):
    """Whether f ≥ g everywhere, as far as the two brackets can tell."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


class TradeOff(ABC):
    """A trade-off function; every number it gives is a certified bracket, f(α) its certified lower bound."""

    @property
    @abstractmethod
    def symmetric(self) -> bool: ...

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many elementary mechanisms are composed in it at most."""

    @property
    def kinks(self) -> frozenset[float]:
        return frozenset()

    @abstractmethod
    def profile(self, side: Side) -> Profile:
        """δ(ε) in closed form, certified from the given side."""

    def factor(self, step: float, side: Side) -> Factor:
        """The law on a lattice, ready to be composed."""
        return Leaf(discretise(self.profile(side), step, side), step)

    @property
    def tolerance(self) -> float:
        return DEFAULT_TOLERANCE

    @cached_property
    def certified(self) -> Certified:
        return Certified(self.factor, self.symmetric, self.steps, self.kinks, self.tolerance)

    def __call__(self, alpha: float | Array) -> Array:
        """Certified lower bound on f(α)."""
        return np.interp(_levels(alpha), *self.certified.lower_curve)

    def upper(self, alpha: float | Array) -> Array:
        """Certified upper bound on f(α)."""
        levels = _levels(alpha)
        return np.minimum(np.interp(levels, *self.certified.upper_curve), 1 - levels)

    def delta(self, epsilon: float) -> Bound:
        """δ such that (ε, δ)-DP holds in both orders; ε may be negative."""
        return self.certified.delta(number("epsilon", epsilon, -np.inf, ends="(]"))

    def epsilon(self, delta: float) -> Bound:
        """ε ≥ 0 such that (ε, δ)-DP holds; the upper end is infinite where δ is less than what leaks outright."""
        return self.certified.epsilon(_probability("delta", delta))

    def mu(self, alpha_min: float = 1e-5) -> Bound:
        """Smallest μ with f ≥ G_μ on [alpha_min, 1 − alpha_min]. A bare "μ-GDP" must carry this range."""
        return self.certified.mu(number("alpha_min", alpha_min, 1e-9, 0.1))

    def total_variation(self) -> Bound:
        return self.delta(0.0)

    def advantage(self) -> Bound:
        """The best attack's true-positive rate minus its false-positive rate: the total variation."""
        return self.total_variation()

    def positive_predictive_value(self, prior: float, alpha: float) -> Bound:
        """How often a membership attack of false-positive rate α is right when it says yes, at a prior probability."""
        prior = number("prior", prior, 0, 1, ends="()")
        alpha = number("alpha", alpha, 0, 1, ends="()")
        both = self.symmetrised()
        powers = 1 - float(both.upper(alpha)), 1 - float(both(alpha))
        lower, upper = (prior * power / (prior * power + (1 - prior) * alpha) for power in powers)
        return Bound(lower, upper)

    def inverse(self) -> TradeOff:
        """T(Q, P)."""
        return self if self.symmetric else _derived((self,), lambda pair: pair.reversed())

    def symmetrised(self) -> TradeOff:
        """min{f, f⁻¹}**."""
        return self if self.symmetric else Symmetrised(self)

    def at_least(self, other: TradeOff) -> Answer:
        """Whether f ≥ other everywhere, up to 1e−9 in δ."""
        if self == other:
            return Answer.YES
        sure, possible = True, True
        for order in ("forward", "backward"):
            halves = {(f, s): getattr(f.profile(s), order) for f in (self, other) for s in Side}
            step = max(reach(half, 1e-13) for half in halves.values()) / 20_000
            at = {key: nodes(half, step, key[1], cut=1e-13) for key, half in halves.items()}
            size = max(values.size for values in at.values())
            at = {key: np.pad(values, (0, size - values.size), mode="edge") for key, values in at.items()}
            sure &= bool(np.all(at[self, Side.PESSIMISTIC] <= at[other, Side.OPTIMISTIC] + 1e-9))
            possible &= bool(np.all(at[self, Side.OPTIMISTIC] <= at[other, Side.PESSIMISTIC] + 1e-9))
        return Answer.YES if sure else Answer.UNDECIDED if possible else Answer.NO


def _levels(alpha: float | Array) -> Array:
    levels = np.asarray(alpha, dtype=float)
    if np.all((levels >= 0) & (levels <= 1)):
        return levels
    raise BadValue("alpha", alpha, "must lie in [0, 1]")


def _probability(field: str, value: float) -> float:
    return number(field, value, 0, 1, ends="()", remedy="a δ is a small probability such as 1e-5")


@dataclass(frozen=True)
class Closed(TradeOff):
    """A pair whose profile is known in closed form."""

    pair: Profile

    @property
    def symmetric(self) -> bool:
        return self.pair.symmetric

    @property
    def steps(self) -> int:
        return 1

    @property
    def kinks(self) -> frozenset[float]:
        return frozenset(k for k in (self.pair.forward.kink, self.pair.backward.kink) if k is not None)

    def profile(self, side: Side) -> Profile:
        return self.pair

    def __call__(self, alpha: float | Array) -> Array:
        return self._best_line(_levels(alpha), 1.0)

    def upper(self, alpha: float | Array) -> Array:
        levels = _levels(alpha)
        return np.asarray(np.minimum(self._best_line(levels, -1.0) + 1e-12, 1 - levels))

    def _best_line(self, alpha: Array, sign: float) -> Array:
        """sup over ε of 1 − δ(ε) − e^ε α, found where P(L > ε) passes α; δ moved by its rounding error times `sign`."""
        fore, back = self.pair.forward, self.pair.backward
        low, high = np.full(alpha.shape, -reach(back, 1e-300)), np.full(alpha.shape, reach(fore, 1e-300))

        def both(eps: Array) -> tuple[Array, Array]:
            (up, up_tail), (down, down_tail) = fore.at(np.maximum(eps, 0.0)), back.at(np.maximum(-eps, 0.0))
            growth = np.exp(eps)
            line = np.where(
                eps >= 0,
                1 - up * (1 + sign * fore.accuracy) - growth * alpha,
                growth * (1 - alpha - down * (1 + sign * back.accuracy)),
            )
            return line, np.where(eps >= 0, up_tail / growth, 1 - down - down_tail)

        for _ in range(100):
            middle = (low + high) / 2
            above = both(middle)[1] > alpha
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        best = np.maximum(both(low)[0], both(high)[0])
        return np.clip(best, 0.0, 1 - alpha)

    def delta(self, epsilon: float) -> Bound:
        eps = number("epsilon", epsilon, -np.inf, ends="(]")
        half = self.pair.worse()
        value = float(half.at(np.array([abs(eps)]))[0][0])
        low, high = value * (1 - half.accuracy), min(1.0, value * (1 + half.accuracy))
        if eps >= 0:
            return Bound(low, high)
        rest = -float(np.expm1(eps))
        return Bound(rest + np.exp(eps) * low, min(1.0, rest + np.exp(eps) * high))

    def epsilon(self, delta: float) -> Bound:
        target, half = _probability("delta", delta), self.pair.worse()

        def solve(scale: float) -> float:
            """ε with δ(∞) + (δ(ε) − δ(∞))·scale = target, by bisection."""

            def above(eps: float) -> bool:
                return half.limit + (float(half.at(np.array([eps]))[0][0]) - half.limit) * scale > target

            if half.limit > target:
                return float("inf")
            if not above(0.0):
                return 0.0
            low, high = 0.0, 1e-3
            while above(high):
                low, high = high, 2 * high
            for _ in range(200):
                middle = (low + high) / 2
                low, high = (middle, high) if above(middle) else (low, middle)
            return high

        return Bound(solve(1 - half.accuracy), solve(1 + half.accuracy))

    def inverse(self) -> TradeOff:
        return self if self.symmetric else Closed(self.pair.reversed())

    def symmetrised(self) -> TradeOff:
        return self if self.symmetric else Closed(both_ways(self.pair.worse()))

    def renyi(self, order: float) -> float:
        """Upper bound on the Rényi divergence of this order, the worse of both ways round.

        E_P[(dQ/dP)^a] for the pessimistic discrete pair, whose likelihood ratio is a mean-preserving spread of the true
        one; its lattice reaches as far as the order needs.
        """
        return _renyi(self.pair.worse(), number("order", order, 1, 128, ends="(]"))


@lru_cache(maxsize=256)
def _renyi(half: Half, order: float) -> float:
    if half.limit > 0:
        return float("inf")
    eps = np.linspace(0.0, reach(half, 1e-300), 50_000)
    values = half.at(eps)[0] * (1 + half.accuracy)
    pair = masses(values, values, float(eps[1]), Side.PESSIMISTIC)
    losses = pair.losses(float(eps[1]))
    with np.errstate(divide="ignore"):
        terms = np.where(losses >= 0, np.log(pair.q), np.log(pair.p) + losses) + (order - 1) * losses
    if terms[-2] > terms.max() - 40 and float(half.at(eps[-2:-1])[0][0]) > 0:  # the integral goes on past underflow
        raise BadValue("order", order, "is too high for this mechanism in double precision", "take a lower order")
    peak = float(terms.max())
    return (peak + float(np.log(np.exp(terms - peak).sum()))) / (order - 1) * (1 + 1e-12)


@dataclass(frozen=True)
class Gaussian(Closed):
    """G_μ, where everything has a closed form."""

    @property
    def _mu(self) -> float:
        assert isinstance(self.pair.forward, GaussianHalf)
        return self.pair.forward.mu

    def __call__(self, alpha: float | Array) -> Array:
        return np.asarray(ndtr(-ndtri(_levels(alpha)) - self._mu * (1 + 1e-15)))

    def upper(self, alpha: float | Array) -> Array:
        return np.asarray(ndtr(-ndtri(_levels(alpha)) - self._mu * (1 - 1e-15)))

    def mu(self, alpha_min: float = 1e-5) -> Bound:
        number("alpha_min", alpha_min, 0, 0.5)
        return Bound(self._mu, self._mu)


def gaussian(mu: float) -> TradeOff:
    """G_μ = T(N(0, 1), N(μ, 1))."""
    mu = number("mu", mu, 0)
    return Gaussian(both_ways(GaussianHalf(mu))) if mu > 0 else identity


def laplace(scale: float) -> TradeOff:
    """T(Lap(0, scale), Lap(1, scale)): noise of this scale on a number that moves by at most 1."""
    return Closed(both_ways(LaplaceHalf(1 / number("scale", scale, 1e-3, ends="(]"))))


def epsilon_delta(epsilon: float, delta: float) -> TradeOff:
    """f_{ε,δ}: the trade-off function equivalent to (ε, δ)-DP."""
    return Closed(both_ways(EpsilonDeltaHalf(number("epsilon", epsilon, 0, 600), number("delta", delta, 0, 1))))


identity: TradeOff = epsilon_delta(0.0, 0.0)  # 1 − α: nothing leaks
leak: TradeOff = epsilon_delta(0.0, 1.0)  # 0: everything leaks


def from_points(alphas: Sequence[float], betas: Sequence[float]) -> TradeOff:
    """The largest convex trade-off function through or under the given points (their double conjugate)."""
    points = sorted(zip((float(a) for a in alphas), (float(b) for b in betas), strict=True))
    for alpha, beta in points:
        if not (0 <= alpha <= 1 and 0 <= beta <= 1 - alpha + 1e-15):
            raise BadValue("point", (alpha, beta), "must satisfy 0 ≤ β ≤ 1 − α")
    hull = _hull_below([(0.0, 1.0), *points, (1.0, 0.0)])
    mirrored = _hull_below([(b, a) for a, b in hull])
    return Closed(Profile(PointsHalf(hull), PointsHalf(mirrored)))


def _hull_below(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Vertices of the largest convex non-increasing function under the points, from α = 0 to where it reaches 0."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if hull and y >= hull[-1][1]:
            continue
        while hull and hull[-1][0] == x:
            hull.pop()
        while len(hull) > 1:
            (x1, y1), (x2, y2) = hull[-2:]
            if (y2 - y1) * (x - x1) < (y - y1) * (x2 - x1):
                break
            hull.pop()
        hull.append((x, y))
    return tuple(hull)


def fixed_size(f: TradeOff, rate: float) -> TradeOff:
    """C_q(f) = min{f_q, f_q⁻¹}**: a batch of fixed size, a share `rate` of the records, one record replaced.

    Dong, Roth, Su 2022, Theorem 4.2; an upper bound on the leak, not always attained.
    """
    rate = number("rate", rate, 0, 1, ends="(]")
    if rate == 1:
        return f.symmetrised()
    return _derived((f,), lambda pair: both_ways(SubsampledHalf(pair.worse(), rate)))


def poisson_gaussian(noise_multiplier: float, rate: float, neighbours: Neighbours) -> TradeOff:
    """One noisy sum over a Poisson batch: each record joins with probability `rate`, vectors clipped to norm 1.

    Noise has standard deviation `noise_multiplier`. Add/remove: N(0) against (1−q)N(0) + qN(1), which dominates
    (Zhu, Dong, Wang 2022). Replace: the antipodal pair; the proof is in docs/maths.md.
    """
    spread = number("noise_multiplier", noise_multiplier, LEAST_NOISE, remedy="less noise than this protects nobody")
    rate = number("rate", rate, 0, 1, ends="(]")
    replace = neighbours is Neighbours.REPLACE
    if rate == 1:
        return gaussian((2 if replace else 1) / spread)
    if replace:
        return Closed(both_ways(AntipodalHalf(spread, rate)))
    inner = GaussianHalf(1 / spread)
    return Closed(Profile(SubsampledHalf(inner, rate), UnsampledHalf(inner, rate)))


def participating(f: TradeOff, share: float) -> TradeOff:
    """f with probability `share`, nothing otherwise, and everybody learns which: profile share·δ_f + (1−share)(1−e^ε)₊."""
    share = number("share", share, 0, 1)
    if share == 0 or f == identity:
        return identity
    return f if share == 1 else Participating(f, share)


def compose(*parts: tuple[TradeOff, int], tolerance: float = DEFAULT_TOLERANCE) -> TradeOff:
    """f₁^⊗n₁ ⊗ f₂^⊗n₂ ⊗ …, adaptively chosen mechanisms included. The only place where a count is read."""
    number("tolerance", tolerance, 1e-9, 1.0)
    counts: dict[TradeOff, int] = {}
    squared_mu = 0.0

    def add(f: TradeOff, count: int) -> None:
        nonlocal squared_mu
        if isinstance(f, Composition):
            for inner, inner_count in f.parts:
                add(inner, count * inner_count)
        elif isinstance(f, Gaussian):
            squared_mu += count * f.mu().upper ** 2
        elif count > 0 and f != identity:
            counts[f] = counts.get(f, 0) + count

    if any(f == leak and count > 0 for f, count in parts):
        return leak

    for f, count in parts:
        add(f, whole("count", count, 0, 10**9))
    if squared_mu > 0:
        counts[gaussian(float(np.sqrt(squared_mu)))] = 1
    if not counts:
        return identity
    if len(counts) == 1 and next(iter(counts.values())) == 1:
        return next(iter(counts))
    return Composition(tuple(counts.items()), tolerance)


def minimum(f: TradeOff, g: TradeOff) -> TradeOff:
    """min{f, g}**: what holds when either of two mechanisms may have run."""
    return _derived(
        (f, g),
        lambda one, two: Profile(WorseHalf(one.forward, two.forward), WorseHalf(one.backward, two.backward)),
    )


def maximum(f: TradeOff, g: TradeOff) -> TradeOff:
    """max{f, g}: what holds when both are proved of the same mechanism."""
    return Maximum(f, g)


def _derived(inners: tuple[TradeOff, ...], transform: Callable[..., Profile]) -> TradeOff:
    if all(isinstance(f, Closed) for f in inners):
        pair = transform(*(f.profile(Side.PESSIMISTIC) for f in inners))
        return Closed(pair)
    return Derived(inners, transform)


class Numeric(TradeOff):
    """A trade-off function known through its law on a lattice."""

    def profile(self, side: Side) -> Profile:
        one = self.certified.sides[side]
        forward = LawHalf(one, side, backward=False)
        return both_ways(forward) if self.symmetric else Profile(forward, LawHalf(one, side, backward=True))


@dataclass(frozen=True, eq=False)
class Derived(Numeric):
    """A transformed profile of numeric trade-off functions, certified from the same side as they are."""

    inners: tuple[TradeOff, ...]
    transform: Callable[..., Profile]

    @cached_property
    def _pairs(self) -> dict[Side, Profile]:
        return {side: self.transform(*(f.profile(side) for f in self.inners)) for side in Side}

    @property
    def symmetric(self) -> bool:
        return self._pairs[Side.PESSIMISTIC].symmetric

    @property
    def steps(self) -> int:
        return 1

    def profile(self, side: Side) -> Profile:
        return self._pairs[side]

    def factor(self, step: float, side: Side) -> Factor:
        return Leaf(discretise(self._pairs[side], step, side), step)


@dataclass(frozen=True)
class Participating(Numeric):
    """See `participating`."""

    f: TradeOff
    share: float

    @property
    def symmetric(self) -> bool:
        return self.f.symmetric

    @property
    def steps(self) -> int:
        return self.f.steps

    @property
    def kinks(self) -> frozenset[float]:
        return self.f.kinks

    @property
    def tolerance(self) -> float:
        return self.f.tolerance

    def factor(self, step: float, side: Side) -> Factor:
        return Mixture(self.f.factor(step, side), self.share)


@dataclass(frozen=True)
class Composition(Numeric):
    """See `compose`."""

    parts: tuple[tuple[TradeOff, int], ...]
    asked: float

    @property
    def symmetric(self) -> bool:
        return all(f.symmetric for f, _ in self.parts)

    @property
    def steps(self) -> int:
        return sum(count * f.steps for f, count in self.parts)

    @property
    def kinks(self) -> frozenset[float]:
        return frozenset().union(*(f.kinks for f, _ in self.parts))

    @property
    def tolerance(self) -> float:
        return self.asked

    def factor(self, step: float, side: Side) -> Factor:
        return Product(tuple((f.factor(step, side), count) for f, count in self.parts))


@dataclass(frozen=True)
class Maximum(Numeric):
    """See `maximum`: the convex hull of the smaller of two profiles, taken at the nodes."""

    f: TradeOff
    g: TradeOff

    @property
    def symmetric(self) -> bool:
        return self.f.symmetric and self.g.symmetric

    @property
    def steps(self) -> int:
        return 1

    def factor(self, step: float, side: Side) -> Factor:
        pairs = self.f.profile(side), self.g.profile(side)
        fore = _smaller([nodes(pair.forward, step, side) for pair in pairs])
        back = _smaller([nodes(pair.backward, step, side) for pair in pairs])
        return Leaf(masses(fore, back, step, side), step)


def _smaller(values: list[Array]) -> Array:
    size = max(v.size for v in values)
    return np.asarray(np.min([np.pad(v, (0, size - v.size), mode="edge") for v in values], axis=0))


@dataclass(frozen=True)
class Symmetrised(Numeric):
    """min{f, f⁻¹}** of a numeric f: its numbers are already those of the worse order, only the curve differs."""

    f: TradeOff

    @property
    def symmetric(self) -> bool:
        return True

    @property
    def steps(self) -> int:
        return 1

    def profile(self, side: Side) -> Profile:
        return both_ways(self.f.profile(side).worse())

    def factor(self, step: float, side: Side) -> Factor:
        return Leaf(discretise(self.profile(side), step, side), step)

    @cached_property
    def _hull(self) -> tuple[Array, Array]:
        alpha, beta = self.f.certified.lower_curve
        points = list(zip(alpha.tolist(), beta.tolist(), strict=True))
        hull = _hull_below(points + [(b, a) for a, b in points])
        x, y = np.array(hull).T
        return x, y

    def __call__(self, alpha: float | Array) -> Array:
        return np.interp(_levels(alpha), *self._hull)

    def upper(self, alpha: float | Array) -> Array:
        levels = _levels(alpha)
        a, b = self.f.certified.upper_curve
        return np.minimum(self.f.upper(levels), np.interp(levels, b[::-1], a[::-1]))

    def delta(self, epsilon: float) -> Bound:
        return self.f.delta(epsilon)

    def epsilon(self, delta: float) -> Bound:
        return self.f.epsilon(delta)

    def mu(self, alpha_min: float = 1e-5) -> Bound:
        return self.f.mu(alpha_min)


@dataclass(frozen=True, eq=False)
class LawHalf(Half):
    """The profile of a computed law, moved outwards by its error."""

    one: OneSide
    side: Side
    backward: bool

    def at(self, eps: Array) -> tuple[Array, Array]:
        sign = 1.0 if self.side is Side.PESSIMISTIC else -1.0
        value, tail, _ = self.one.ordered(0.0, self.backward).hockey_stick(eps)
        return np.clip(value + self.one.infinite(self.backward) + sign * self._error, self.limit, 1.0), tail

    @cached_property
    def _error(self) -> float:
        """One bound for every ε ≥ 0: the error at ε = 0, where it is largest."""
        return self.one.ordered(0.0, self.backward).delta(0.0)[1]

    @property
    def limit(self) -> float:
        sign = 1.0 if self.side is Side.PESSIMISTIC else -1.0
        return min(1.0, max(0.0, self.one.infinite(self.backward) + sign * self._error))
