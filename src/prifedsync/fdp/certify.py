"""From laws to certified answers: δ(ε), ε(δ), the curve and μ, each from a pessimistic and an optimistic law.

Notation: a vertex of a trade-off curve is (α, β) = (P(L > t), Q(L ≤ t)). Every computed law has a tilt, and its error is
at most its slack. At each t the law with the smallest error is used, so that very small α and very small β both have
relative precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import TypeVar

import numpy as np
from scipy.special import ndtri

from .bounds import Array, Bound
from .lattice import LatticeTooLong, Side
from .law import Factor, Law, compose, window

MAX_SIZE = 1 << 21  # maximum FFT length; a wider bracket is accepted instead of a longer one
LONG = 1 << 17  # FFT length from which two threads save more time than it takes to start them
CURVE_POINTS = 16_000  # number of thresholds of a curve
TILTS = tuple(float(t) for t in 2.0 ** np.arange(-6, 12.5, 0.5))  # candidates for the best tilt
TYPICAL_DELTA = 1e-5  # the δ at which the width of the bracket is checked
Build = Callable[[float, Side], Factor]
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(eq=False)
class OneSide:
    """One of the two laws (pessimistic or optimistic), with as many tilts as are needed."""

    factor: Factor
    symmetric: bool
    _laws: dict[float, Law] = field(default_factory=dict)

    def law(self, tilt: float) -> Law:
        if tilt not in self._laws:
            mirror = self._laws.get(-1 - tilt) if self.symmetric else None
            for other in set(self._laws) - {0.0, -1.0}:  # laws are large: store two plain ones and the last tilted one
                del self._laws[other]
            self._laws[tilt] = mirror.mirrored if mirror else compose(self.factor, tilt)
        return self._laws[tilt]

    def ordered(self, tilt: float, backward: bool) -> Law:
        return self.law(-1 - tilt).mirrored if backward and not self.symmetric else self.law(tilt)

    def _cgf(self, tilt: float, backward: bool) -> float:
        return self.factor.cgf(-1 - tilt if backward else tilt)

    def infinite(self, backward: bool) -> float:
        return self.factor.infinite[1 if backward else 0]

    def delta(self, eps: float, backward: bool) -> tuple[float, float]:
        """(δ, error bound). A tilted law is used if the plain law is not precise enough."""
        value, error = self.ordered(0.0, backward).delta(eps)
        if value < 1e4 * error and eps > 0:
            tilt = self._best_tilt(lambda t: self._cgf(t, backward) - t * eps, backward)
            value, error = min((value, error), self.ordered(tilt, backward).delta(eps), key=lambda pair: pair[1])
        return max(value, 0.0) + self.infinite(backward), error

    def epsilon(self, delta: float, backward: bool, sign: float) -> float:
        """The ε where δ(ε) ± error = delta: + (sign = 1) for an upper, − for a lower bound on ε."""
        finite = delta - self.infinite(backward)
        if finite <= 0:
            return np.inf
        law = self.ordered(0.0, backward)
        if finite < 1e4 * law.slack:
            law = self.ordered(self._best_tilt(lambda t: self._chernoff(finite, t, backward), backward), backward)
        # the error bound falls as ε grows: take it at δ = 2·finite, left of the answer as long as it is below finite
        _, error = law.delta(law.epsilon(2 * finite)[0])
        if error < finite:
            return law.epsilon(finite - sign * error)[1 if sign > 0 else 0]
        if sign < 0:
            return 0.0
        low_end, high_end = self.factor.support  # no finite loss exceeds its end
        ceiling = min(-low_end if backward else high_end, *(self._chernoff(finite, t, backward) for t in TILTS))
        return max(0.0, ceiling) * (1 + 1e-12)

    def _chernoff(self, delta: float, tilt: float, backward: bool) -> float:
        """An ε with δ(ε) ≤ Q(L > ε) ≤ e^(K(θ) − θε) = delta."""
        return (self._cgf(tilt, backward) - float(np.log(delta))) / tilt

    def _affordable(self, tilt: float) -> bool:
        return window(self.factor, tilt)[1] <= MAX_SIZE

    def _best_tilt(self, cost: Callable[[float], float], backward: bool) -> float:
        """The tilt with the smallest cost, or 0 if its law would be too long."""
        best = TILTS[int(np.argmin([cost(t) for t in TILTS]))]
        return best if self._affordable(-1 - best if backward and not self.symmetric else best) else 0.0

    @cached_property
    def vertices(self) -> tuple[Array, Array, Array, Array, Array]:
        """(t, α, its error, β, its error) at thresholds t rising, each a node."""
        overlap = -self.factor.cgf(-0.5)  # −log of the Bhattacharyya coefficient: large if the two laws are far apart
        parts = 1 if overlap < 3 else 2 if overlap < 12 else 4
        tilts = [-i / parts for i in range(parts + 1) if i in (0, parts) or self._affordable(-i / parts)]
        tilts.sort(key=lambda tilt: -abs(tilt + 0.5))  # mirror images one after the other
        # of mirror images one window is enough: they are mirrored below
        windows = [window(self.factor, tilt) for tilt in tilts if tilt >= -0.5 or not self.symmetric]
        first, last = min(start for start, _ in windows) - 1, max(start + size for start, size in windows)
        if self.symmetric:
            first, last = min(first, -last), max(last, -first)
        even = np.arange(first, last + 1, max(1, (last - first) // CURVE_POINTS))
        # rare events show near loss 0 only
        dense = np.rint(np.geomspace(1, max(last, -first), 2000)).astype(np.int64)
        node = _rising(np.concatenate((even, -dense, [0], dense)))
        alpha = alpha_error = beta = beta_error = np.full(node.size, np.inf)
        for tilt in tilts:
            law = self.law(tilt)
            alpha, alpha_error = _better(alpha, alpha_error, *law.p_above(node))
            beta, beta_error = _better(beta, beta_error, *law.q_up_to(node))
        return node * self.factor.step, alpha, alpha_error, beta, beta_error


def _rising(values: np.ndarray) -> np.ndarray:
    """The different values in rising order. numpy.unique would hash them, which takes longer than sorting."""
    ordered = np.sort(values)
    return ordered[np.diff(ordered, prepend=ordered[0] - 1) > 0]


def _better(value: Array, error: Array, new_value: Array, new_error: Array) -> tuple[Array, Array]:
    """At each place the value with the smaller error."""
    return np.where(new_error < error, new_value, value), np.minimum(new_error, error)


@dataclass(eq=False)
class Certified:
    """Both laws of one trade-off function, on a lattice that is fine enough for the tolerance."""

    build: Build
    symmetric: bool
    steps: int
    kinks: frozenset[float]
    tolerance: float
    _built: tuple[float, Factor] | None = None  # the last pessimistic factor from the search for a step
    _size: int = 1  # its FFT length

    @cached_property
    def sides(self) -> dict[Side, OneSide]:
        step, full = self._first_step()
        last_width = np.inf
        for attempt in count():
            sides = self._both(partial(self._side, step), Side)
            high = sides[Side.PESSIMISTIC].epsilon(TYPICAL_DELTA, False, 1.0)
            low = sides[Side.OPTIMISTIC].epsilon(TYPICAL_DELTA, False, -1.0)
            width, asked = Bound(low, high).width, self._asked(high)
            # a bracket inherited from computed parts does not shrink with the step
            if full or attempt == 2 or not np.isfinite(high) or width <= asked or width > last_width / 2:
                break
            last_width = width
            step, full = self._affordable(step * float(np.clip(0.9 * np.sqrt(asked / width), 0.1, 0.7)))
        return sides

    def _both(self, work: Callable[[Key], Value], keys: Iterable[Key]) -> dict[Key, Value]:
        """Compute both sides. Long laws are computed in two threads: numpy and the FFT release the interpreter's lock."""
        given = list(keys)
        if self._size < LONG:
            return {key: work(key) for key in given}
        with ThreadPoolExecutor(len(given)) as pool:
            return dict(zip(given, pool.map(work, given), strict=True))

    def _side(self, step: float, side: Side) -> OneSide:
        built = self._built if side is Side.PESSIMISTIC else None
        one = OneSide(built[1] if built and built[0] == step else self.build(step, side), self.symmetric)
        one.law(0.0)
        if side is Side.PESSIMISTIC and not self.symmetric:
            one.law(-1.0)
        return one

    @cached_property
    def _vertices(self) -> dict[Side, tuple[Array, Array, Array, Array, Array]]:
        sides = self.sides  # first, because it decides whether there are threads
        return self._both(lambda side: sides[side].vertices, Side)

    def _asked(self, eps: float) -> float:
        """The target width of the bracket around this ε: the tolerance, relative if ε is below 1."""
        return self.tolerance * float(np.clip(eps, 1e-3, 1.0))

    def _first_step(self) -> tuple[float, bool]:
        """The step at which the bracket should have the target width, from the moments of a coarse law.

        A step h moves the variance of one loss by about h²/6 upwards or h²/12 downwards, hence ε at δ by about
        n·h²/8·(1 + 4.3/sd) in all, with sd that of the sum (Gaussian approximation, δ = 1e−5).
        """
        step = self._on_kink(min(0.05, 4 * float(np.sqrt(self.tolerance / self.steps))))
        for _ in range(8):
            step, coarse = self._buildable(step)
            mean, variance = coarse.moments(0.0) if coarse.cgf(0.0) > -np.inf else (0.0, 0.0)
            sd = float(np.sqrt(variance))
            if sd == 0 or step < sd / 20:
                break
            step = self._on_kink(sd / 50)
        if sd > 0:
            asked = self._asked(mean + 4.3 * sd)
            step = min(sd / 50, float(np.sqrt(0.8 * asked * 8 / self.steps / (1 + 4.3 / sd))))
        return self._affordable(step)

    def _buildable(self, step: float) -> tuple[float, Factor]:
        """The pessimistic factor with this step, or with the first coarser one that does not need too many nodes."""
        while True:
            try:
                self._built = step, self.build(step, Side.PESSIMISTIC)
            except LatticeTooLong:
                step *= 4
            else:
                return self._built

    def _affordable(self, step: float) -> tuple[float, bool]:
        """The step, or a coarser one if the FFT would be too long, and whether it is coarser."""
        coarse = self._on_kink(step)
        for _ in range(8):
            coarse, factor = self._buildable(coarse)
            tilts = (0.0,) if self.symmetric else (0.0, -1.0)
            self._size = max(window(factor, tilt)[1] for tilt in tilts) if factor.cgf(0.0) > -np.inf else 1
            if self._size <= MAX_SIZE:
                break
            coarse *= 1.05 * self._size / MAX_SIZE
        return coarse, coarse > step

    def _on_kink(self, step: float) -> float:
        if len(self.kinks) != 1:
            return step
        (kink,) = self.kinks
        return kink / float(np.ceil(kink / step))

    @property
    def _orders(self) -> tuple[bool, ...]:
        return (False,) if self.symmetric else (False, True)

    def delta(self, eps: float) -> Bound:
        def one_way(side: Side, sign: float, backward: bool) -> float:
            value, error = self.sides[side].delta(eps, backward)
            return value + sign * error

        return self._worse(one_way, -float(np.expm1(min(eps, 0.0))), 1.0)

    def epsilon(self, delta: float) -> Bound:
        return self._worse(lambda side, sign, backward: self.sides[side].epsilon(delta, backward, sign), 0.0, np.inf)

    def _worse(self, one_way: Callable[[Side, float, bool], float], least: float, most: float) -> Bound:
        """The bracket of the order that leaks more. The optimistic law of an order that surely leaks less is not used."""
        lower = upper = least
        for backward in self._orders:
            high = one_way(Side.PESSIMISTIC, 1.0, backward)
            upper = max(upper, high)
            if high > lower:
                lower = max(lower, one_way(Side.OPTIMISTIC, -1.0, backward))
        return Bound(min(lower, most), min(upper, most))

    @cached_property
    def lower_curve(self) -> tuple[Array, Array]:
        """Vertices (α increasing, β) of a convex curve under f: the envelope of supporting lines of the pessimistic law.

        At a threshold t the line β_t + e^t(α_t − α) supports f; lowering α_t and β_t by their errors lowers the line.
        """
        t, alpha, alpha_error, beta, beta_error = self._vertices[Side.PESSIMISTIC]
        q_infinite, _ = self.sides[Side.PESSIMISTIC].factor.infinite
        a = np.maximum.accumulate(np.clip(alpha - alpha_error, 0.0, 1.0)[::-1])  # thresholds now fall, α rises
        b = np.maximum.accumulate(np.clip(beta - beta_error, 0.0, 1.0))[::-1]
        growth = np.exp(np.minimum(-np.diff(t[::-1]), 700.0))  # e^(t_i − t_{i+1}) > 1
        fall, rise = -np.diff(b), np.diff(a)
        # where consecutive lines meet, as a share of the step in α; 0 or 1 if rounding has crossed them
        weight = np.exp(np.minimum(t[::-1][1:], 700.0)) * rise
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nan_to_num(np.clip((fall / weight - 1) / (growth - 1), 0.0, 1.0))
        meet_a = a[:-1] + share * rise
        meet_b = np.maximum(b[1:], 0.0) + weight * (1 - share)
        meet_b = np.minimum(meet_b, b[:-1]) * (1 - 1e-12)
        end = min(1.0, a[-1] + b[-1] * float(np.exp(min(-t[0], 700.0))))  # where the last line reaches β = 0
        return np.concatenate(([0.0], meet_a, [end])), np.concatenate(([min(float(b[0]), 1 - q_infinite)], meet_b, [0.0]))

    @cached_property
    def upper_curve(self) -> tuple[Array, Array]:
        """Points of a polygon above f: above and to the right of the vertices of the optimistic law."""
        _, alpha, alpha_error, beta, beta_error = self._vertices[Side.OPTIMISTIC]
        q_infinite, _ = self.sides[Side.OPTIMISTIC].factor.infinite
        a = np.minimum.accumulate(np.clip(alpha + alpha_error, 0.0, 1.0))[::-1]
        b = np.minimum.accumulate(np.clip(beta + beta_error, 0.0, 1.0)[::-1])
        return np.concatenate(([0.0], a, [1.0])), np.concatenate(([1 - q_infinite], b, [0.0]))

    def mu(self, alpha_min: float) -> Bound:
        """The smallest μ with f ≥ G_μ on [alpha_min, 1 − alpha_min], in both orders of the pair.

        G_μ is convex, so a curve of chords lies above it as soon as its vertices and the two ends of the range do.
        """
        alpha, beta = self.upper_curve
        seen = (alpha > 0) & (beta > 0)  # a value that underflowed need not be 0, so it gives no lower bound
        lower = _largest_mu(alpha[seen], beta[seen], alpha_min, outside=1.0)
        return Bound(lower, _largest_mu(*self.lower_curve, alpha_min, outside=0.0))


def _largest_mu(alpha: Array, beta: Array, alpha_min: float, outside: float) -> float:
    """The largest μ at the points and at the ends of the range, in either order.

    `outside` is the type-II error beyond the last point: 0 is safe for an upper bound on μ, 1 for a lower one.
    """
    ends = np.array([alpha_min, 1 - alpha_min])
    largest = 0.0
    for one, other in ((alpha, beta), (beta[::-1], alpha[::-1])):
        inside = (one >= alpha_min) & (one <= 1 - alpha_min)
        x = np.concatenate((one[inside], ends))
        at_ends = np.interp(ends, one, other, left=outside, right=outside) if one.size else np.full(2, outside)
        y = np.concatenate((other[inside], at_ends))
        largest = max(largest, float(np.max(-ndtri(x) - ndtri(np.minimum(y, 1.0)), initial=0.0)))
    return largest
