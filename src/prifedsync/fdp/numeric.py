"""Trade-off functions known through the distribution of their loss on a lattice: compositions, mixtures and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .bounds import Array, Bound
from .certify import OneSide
from .closed import Closed
from .lattice import Side, masses, nodes
from .law import Factor, Leaf, Mixture, Product
from .profile import Half, Profile, both_ways
from .tradeoff import TradeOff, levels_of


class Numeric(TradeOff):
    """A trade-off function known through the distribution of its loss on a lattice."""

    def profile(self, side: Side) -> Profile:
        one = self.certified.sides[side]
        forward = LawHalf(one, side, backward=False)
        return both_ways(forward) if self.symmetric else Profile(forward, LawHalf(one, side, backward=True))

    def inverse(self) -> TradeOff:
        return self if self.symmetric else derived((self,), lambda pair: pair.reversed())

    def symmetrised(self) -> TradeOff:
        return self if self.symmetric else Symmetrised(self)


@dataclass(frozen=True, eq=False)
class Derived(Numeric):
    """A transformed profile of numeric trade-off functions, certified from the same side."""

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
    """See `maximum`: the convex hull of the smaller of two profiles at the nodes."""

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
    """min{f, f⁻¹}** of a numeric f. The numbers of f are already for the worse order, so only the curve differs."""

    f: TradeOff

    @property
    def symmetric(self) -> bool:
        return True

    @property
    def steps(self) -> int:
        return 1

    def profile(self, side: Side) -> Profile:
        return both_ways(self.f.profile(side).worse())

    @cached_property
    def _hull(self) -> tuple[Array, Array]:
        alpha, beta = self.f.certified.lower_curve
        points = list(zip(alpha.tolist(), beta.tolist(), strict=True))
        hull = hull_below(points + [(b, a) for a, b in points])
        x, y = np.array(hull).T
        return x, y

    def __call__(self, alpha: float | Array) -> Array:
        return np.interp(levels_of(alpha), *self._hull)

    def upper(self, alpha: float | Array) -> Array:
        levels = levels_of(alpha)
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
    """The profile of a computed law, shifted outwards by its error."""

    one: OneSide
    side: Side
    backward: bool

    def at(self, eps: Array) -> tuple[Array, Array]:
        value, tail, _ = self.one.ordered(0.0, self.backward).hockey_stick(eps)
        return np.clip(value + self._beyond, self.limit, 1.0), tail

    @cached_property
    def _beyond(self) -> float:
        """The mass at infinite loss, shifted outwards by the error bound at ε = 0, which is the largest for ε ≥ 0."""
        _, error = self.one.ordered(0.0, self.backward).delta(0.0)
        return self.one.infinite(self.backward) + (error if self.side is Side.PESSIMISTIC else -error)

    @property
    def limit(self) -> float:
        return min(1.0, max(0.0, self._beyond))


def derived(inners: tuple[TradeOff, ...], transform: Callable[..., Profile]) -> TradeOff:
    """The trade-off function of the transformed profile: closed if all inner ones are closed."""
    if all(isinstance(f, Closed) for f in inners):
        pair = transform(*(f.profile(Side.PESSIMISTIC) for f in inners))
        return Closed(pair)
    return Derived(inners, transform)


def hull_below(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The vertices of the largest convex non-increasing function under the points, from α = 0 to where it reaches 0."""
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
