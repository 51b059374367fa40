"""Trade-off functions whose profile is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from ..values import BadValue, number
from .bounds import Array, Bound
from .lattice import Side, masses
from .profile import GaussianHalf, Half, Profile, both_ways, reach
from .tradeoff import TradeOff, levels_of, probability

QUANTILE_ERROR = 1e-13  # error of a normal quantile, including that of the distribution function as a shift


@dataclass(frozen=True)
class Closed(TradeOff):
    """A trade-off function whose profile is known in closed form."""

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
        return self._best_line(levels_of(alpha), 1.0)

    def upper(self, alpha: float | Array) -> Array:
        levels = levels_of(alpha)
        return np.asarray(np.minimum(self._best_line(levels, -1.0) + 1e-12, 1 - levels))

    def _best_line(self, alpha: Array, sign: float) -> Array:
        """sup over ε of 1 − δ(ε) − e^ε α, found where P(L > ε) passes α; δ is shifted by `sign` times its error."""
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
        best = np.maximum(both(low)[0], both(high)[0]) - sign * 4e-16  # the rounding of the last subtraction
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
        target, half = probability("delta", delta), self.pair.worse()

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
            return high if scale > 1 else low

        return Bound(solve(1 - half.accuracy), solve(1 + half.accuracy))

    def inverse(self) -> TradeOff:
        return self if self.symmetric else Closed(self.pair.reversed())

    def symmetrised(self) -> TradeOff:
        return self if self.symmetric else Closed(both_ways(self.pair.worse()))

    def renyi(self, order: float) -> float:
        """An upper bound on the Rényi divergence of this order, the larger of both orders of the pair.

        It is E_P[(dQ/dP)^a] of the pessimistic discrete pair, whose likelihood ratio is a mean-preserving spread of the
        true one. Its lattice is long enough for this order.
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
    if terms[-2] > terms.max() - 40 and float(half.at(eps[-2:-1])[0][0]) > 0:  # the integral is not over where δ underflows
        raise BadValue("order", order, "is too high for this mechanism in double precision", "choose a lower order")
    peak = float(terms.max())
    return (peak + float(np.log(np.exp(terms - peak).sum()))) / (order - 1) * (1 + 1e-12)


@dataclass(frozen=True)
class Gaussian(Closed):
    """G_μ, where all numbers have a closed form."""

    @property
    def parameter(self) -> float:
        assert isinstance(self.pair.forward, GaussianHalf)
        return self.pair.forward.mu

    def __call__(self, alpha: float | Array) -> Array:
        return np.asarray(ndtr(-ndtri(levels_of(alpha)) - self.mu().upper - QUANTILE_ERROR))

    def upper(self, alpha: float | Array) -> Array:
        return np.asarray(ndtr(-ndtri(levels_of(alpha)) - self.mu().lower + QUANTILE_ERROR))

    def mu(self, alpha_min: float = 1e-5) -> Bound:
        number("alpha_min", alpha_min, 0, 0.5)
        return Bound(self.parameter * (1 - 1e-15), self.parameter * (1 + 1e-15))  # a root of a sum of squares is rounded
