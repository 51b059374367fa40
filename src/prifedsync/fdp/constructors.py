"""Constructors of trade-off functions: elementary, subsampled, mixed, composed, and the smaller or larger of two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..limits import LEAST_NOISE, MOST_NOISE
from ..values import BadValue, choice, number, whole
from .bounds import Neighbours
from .closed import Closed, Gaussian
from .numeric import Composition, Maximum, Participating, derived, hull_below
from .profile import (
    AntipodalHalf,
    EpsilonDeltaHalf,
    GaussianHalf,
    LaplaceHalf,
    PointsHalf,
    Profile,
    SubsampledHalf,
    UnsampledHalf,
    WorseHalf,
    both_ways,
)
from .tradeoff import DEFAULT_TOLERANCE, TradeOff


def gaussian(mu: float) -> TradeOff:
    """G_μ = T(N(0, 1), N(μ, 1)): the guarantee of μ-GDP."""
    mu = number("mu", mu, 0)
    return Gaussian(both_ways(GaussianHalf(mu))) if mu > 0 else identity


def laplace(scale: float) -> TradeOff:
    """T(Lap(0, scale), Lap(1, scale)): noise of this scale on a number whose sensitivity is 1."""
    return Closed(both_ways(LaplaceHalf(1 / number("scale", scale, 1e-3, ends="(]"))))


def epsilon_delta(epsilon: float, delta: float) -> TradeOff:
    """f_{ε,δ}: the trade-off function equivalent to (ε, δ)-DP."""
    epsilon = number("epsilon", epsilon, 0, 20, remedy="for a larger ε, which does not protect, use leak")
    return Closed(both_ways(EpsilonDeltaHalf(epsilon, number("delta", delta, 0, 1))))


identity: TradeOff = epsilon_delta(0.0, 0.0)  # 1 − α: nothing leaks
leak: TradeOff = epsilon_delta(0.0, 1.0)  # 0: everything leaks


def from_points(alphas: Sequence[float], betas: Sequence[float]) -> TradeOff:
    """The largest convex trade-off function that is nowhere above the given points (their double conjugate)."""
    points = sorted(zip((float(a) for a in alphas), (float(b) for b in betas), strict=True))
    for alpha, beta in points:
        if not (0 <= alpha <= 1 and 0 <= beta <= 1 - alpha + 1e-15):
            remedy = "give points (α, β) of a trade-off curve"
            raise BadValue("point", (alpha, beta), "must satisfy 0 ≤ β ≤ 1 − α", remedy)
    hull = hull_below([(0.0, 1.0), *points, (1.0, 0.0)])
    mirrored = hull_below([(b, a) for a, b in hull])
    return Closed(Profile(PointsHalf(hull), PointsHalf(mirrored)))


def fixed_size(f: TradeOff, rate: float) -> TradeOff:
    """C_q(f) = min{f_q, f_q⁻¹}**: a batch of fixed size with a fraction `rate` of the records, and one record replaced.

    Dong, Roth, Su 2022, Theorem 4.2. It is an upper bound on the leak, which is not always attained.
    """
    rate = number("rate", rate, 0, 1, ends="(]")
    if rate == 1:
        return f.symmetrised()
    return derived((f,), lambda pair: both_ways(SubsampledHalf(pair.worse(), rate)))


def poisson_gaussian(noise_multiplier: float, rate: float, neighbours: Neighbours) -> TradeOff:
    """One noisy sum over a Poisson batch: each record joins with probability `rate`, and vectors are clipped to norm 1.

    The noise has standard deviation `noise_multiplier`. For add/remove, N(0) against (1−q)N(0) + qN(1) dominates (Zhu,
    Dong, Wang 2022). For replace, the antipodal pair dominates; the proof is in docs/maths.md.
    """
    remedy = "choose a value in this range: less noise does not protect"
    spread = number("noise_multiplier", noise_multiplier, LEAST_NOISE, MOST_NOISE, remedy=remedy)
    rate = number("rate", rate, 0, 1, ends="(]")
    replace = choice("neighbours", neighbours, Neighbours) is Neighbours.REPLACE
    if rate == 1:
        return gaussian((2 if replace else 1) / spread)
    if replace:
        return Closed(both_ways(AntipodalHalf(spread, rate)))
    inner = GaussianHalf(1 / spread)
    return Closed(Profile(SubsampledHalf(inner, rate), UnsampledHalf(inner, rate)))


def participating(f: TradeOff, share: float) -> TradeOff:
    """f with probability `share`, otherwise no release, and all learn which: profile share·δ_f + (1−share)(1−e^ε)₊."""
    share = number("share", share, 0, 1)
    if share == 0 or f == identity:
        return identity
    return f if share == 1 else Participating(f, share)


def compose(*parts: tuple[TradeOff, int], tolerance: float = DEFAULT_TOLERANCE) -> TradeOff:
    """f₁^⊗n₁ ⊗ f₂^⊗n₂ ⊗ …, also for adaptively chosen mechanisms. This is the only place where a count is read."""
    number("tolerance", tolerance, 1e-9, 1.0)
    counts: dict[TradeOff, int] = {}
    squared_mu = 0.0

    def add(f: TradeOff, count: int) -> None:
        nonlocal squared_mu
        if isinstance(f, Composition):
            for inner, inner_count in f.parts:
                add(inner, count * inner_count)
        elif isinstance(f, Gaussian):
            squared_mu += count * f.parameter**2
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
    """min{f, g}**: the guarantee if either of two mechanisms may have run."""
    return derived(
        (f, g),
        lambda one, two: Profile(WorseHalf(one.forward, two.forward), WorseHalf(one.backward, two.backward)),
    )


def maximum(f: TradeOff, g: TradeOff) -> TradeOff:
    """max{f, g}: the guarantee if both are proved for the same mechanism."""
    return Maximum(f, g)
