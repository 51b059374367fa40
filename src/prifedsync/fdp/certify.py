"""From laws to certified answers: δ(ε), ε(δ), the curve and μ, each from a pessimistic and an optimistic law.

Notation: a vertex of a trade-off curve is (α, β) = (P(L > t), Q(L ≤ t)). Every law computed is exact for some tilt
up to its slack; at each t the tilt with the smaller error is used, so that both very small α and very small β are
known to relative precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from .lattice import Side
from .law import Factor, Law, compose, window
from .values import Array, Bound

MAX_SIZE = 1 << 22  # FFT length beyond which a wider bracket is accepted instead
CURVE_POINTS = 16_000  # thresholds at which a curve is written down
TYPICAL_DELTA = 1e-5  # where the bracket asked for is checked
Build = Callable[[float, Side], Factor]


@dataclass(eq=False)
class OneSide:
    """One of the two laws (pessimistic or optimistic), in as many tilts as the questions need."""

    factor: Factor
    symmetric: bool
    _laws: dict[float, Law] = field(default_factory=dict)

    def law(self, tilt: float) -> Law:
        if tilt not in self._laws:
            mirror = self._laws.get(-1 - tilt) if self.symmetric else None
            self._laws[tilt] = mirror.mirrored if mirror else compose(self.factor, tilt)
        return self._laws[tilt]

    def ordered(self, tilt: float, backward: bool) -> Law:
        return self.law(-1 - tilt).mirrored if backward and not self.symmetric else self.law(tilt)

    def _cgf(self, tilt: float, backward: bool) -> float:
        return self.factor.cgf(-1 - tilt if backward else tilt)

    def infinite(self, backward: bool) -> float:
        return self.factor.infinite[1 if backward else 0]

    def delta(self, eps: float, backward: bool) -> tuple[float, float]:
        """(δ, error bound), tilted to where the answer lies if the plain law cannot resolve it."""
        value, error = self.ordered(0.0, backward).delta(eps)
        if value < 1e4 * error and eps > 0:
            tilt = self._best_tilt(lambda t: self._cgf(t, backward) - t * eps)
            value, error = min((value, error), self.ordered(tilt, backward).delta(eps), key=lambda pair: pair[1])
        return max(value, 0.0) + self.infinite(backward), error

    def epsilon(self, delta: float, backward: bool, sign: float) -> float:
        """The ε where δ(ε) ± error = delta: + (sign = 1) for an upper, − for a lower bound on ε."""
        finite = delta - self.infinite(backward)
        if finite <= 0:
            return np.inf
        law = self.ordered(0.0, backward)
        if finite < 1e4 * law.slack:
            law = self.ordered(self._best_tilt(lambda t: (self._cgf(t, backward) - np.log(finite)) / t), backward)
        # the error bound falls as ε grows: take it at δ = 2·finite, left of the answer as long as it is below finite
        _, error = law.delta(law.epsilon(2 * finite))
        if error >= finite:
            return np.inf if sign > 0 else 0.0
        return law.epsilon(finite - sign * error)

    @staticmethod
    def _best_tilt(cost: Callable[[float], float]) -> float:
        tilts = 2.0 ** np.arange(-6, 12.5, 0.5)
        return float(tilts[int(np.argmin([cost(t) for t in tilts]))])

    def _curve_laws(self) -> list[Law]:
        overlap = -self.factor.cgf(-0.5)  # −log of the Bhattacharyya coefficient: large if the two laws are far apart
        parts = 1 if overlap < 3 else 2 if overlap < 12 else 4 if overlap < 50 else 8
        return [self.law(-i / parts) for i in range(parts + 1)]

    @cached_property
    def vertices(self) -> tuple[Array, Array, Array, Array, Array]:
        """(t, α, its error, β, its error) at thresholds t rising in equal steps, each a node."""
        laws = self._curve_laws()
        first = min(law.first for law in laws) - 1
        last = max(law.first + law.weights.size for law in laws)
        node = np.arange(first, last + 1, max(1, (last - first) // CURVE_POINTS))
        alpha, alpha_error = _least_error([law.p_above(node) for law in laws])
        beta, beta_error = _least_error([law.q_up_to(node) for law in laws])
        return node * self.factor.step, alpha, alpha_error, beta, beta_error


def _least_error(candidates: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    values, errors = (np.array(part) for part in zip(*candidates, strict=True))
    best = np.argmin(errors, axis=0)
    column = np.arange(best.size)
    return values[best, column], errors[best, column]


@dataclass(eq=False)
class Certified:
    """Both laws of one trade-off function, on a lattice fine enough for the bracket asked for."""

    build: Build
    symmetric: bool
    steps: int
    kinks: frozenset[float]
    tolerance: float

    @cached_property
    def sides(self) -> dict[Side, OneSide]:
        step, full = self._first_step()
        last_width = np.inf
        while True:
            sides = {side: OneSide(self.build(step, side), self.symmetric) for side in Side}
            high = sides[Side.PESSIMISTIC].epsilon(TYPICAL_DELTA, False, 1.0)
            low = sides[Side.OPTIMISTIC].epsilon(TYPICAL_DELTA, False, -1.0)
            width, asked = Bound(low, high).width, self._asked(high)
            # a bracket inherited from computed parts does not shrink with the step
            if full or not np.isfinite(high) or width <= asked or width > last_width / 2:
                return sides
            last_width = width
            step, full = self._affordable(step * float(np.clip(0.9 * np.sqrt(asked / width), 0.1, 0.7)))

    def _asked(self, eps: float) -> float:
        """The bracket asked for around this ε: the tolerance, relative where ε is below 1."""
        return self.tolerance * float(np.clip(eps, 1e-3, 1.0))

    def _first_step(self) -> tuple[float, bool]:
        """The step at which the bracket should come out as asked, from the moments of a coarse law.

        A step h moves the variance of one loss by about h²/6 upwards or h²/12 downwards, hence ε at δ by about
        n·h²/8·(1 + 4.3/sd) in all, with sd that of the sum (Gaussian approximation, δ = 1e−5).
        """
        step = self._on_kink(min(0.05, 4 * float(np.sqrt(self.tolerance / self.steps))))
        for _ in range(8):
            coarse = self.build(step, Side.PESSIMISTIC)
            mean, variance = coarse.moments(0.0) if coarse.cgf(0.0) > -np.inf else (0.0, 0.0)
            sd = float(np.sqrt(variance))
            if sd == 0 or step < sd / 20:
                break
            step = self._on_kink(sd / 50)
        if sd > 0:
            asked = self._asked(mean + 4.3 * sd)
            step = min(sd / 50, float(np.sqrt(0.8 * asked * 8 / self.steps / (1 + 4.3 / sd))))
        return self._affordable(step)

    def _affordable(self, step: float) -> tuple[float, bool]:
        """The step, or a coarser one if the FFT would grow too long for it; and whether it had to be coarser."""
        coarse = self._on_kink(step)
        for _ in range(8):
            size = window(self.build(coarse, Side.PESSIMISTIC), 0.0)[1]
            if size <= MAX_SIZE:
                break
            coarse *= 1.05 * size / MAX_SIZE
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
        floor = max(0.0, -float(np.expm1(eps)))
        lower, upper = floor, floor
        for backward in self._orders:
            value, error = self.sides[Side.PESSIMISTIC].delta(eps, backward)
            upper = max(upper, value + error)
            value, error = self.sides[Side.OPTIMISTIC].delta(eps, backward)
            lower = max(lower, value - error)
        return Bound(min(lower, 1.0), min(upper, 1.0))

    def epsilon(self, delta: float) -> Bound:
        lower = max(self.sides[Side.OPTIMISTIC].epsilon(delta, back, -1.0) for back in self._orders)
        upper = max(self.sides[Side.PESSIMISTIC].epsilon(delta, back, 1.0) for back in self._orders)
        return Bound(lower, upper)

    @cached_property
    def lower_curve(self) -> tuple[Array, Array]:
        """Vertices (α rising, β) of a convex curve under f: the upper envelope of supporting lines of the pessimistic law.

        At a threshold t the line β_t + e^t(α_t − α) supports f; lowering α_t and β_t by their errors lowers the line.
        """
        t, alpha, alpha_error, beta, beta_error = self.sides[Side.PESSIMISTIC].vertices
        q_infinite, _ = self.sides[Side.PESSIMISTIC].factor.infinite
        a = np.maximum.accumulate(np.clip(alpha - alpha_error, 0.0, 1.0)[::-1])  # thresholds now fall, α rises
        b = np.maximum.accumulate(np.clip(beta - beta_error, 0.0, 1.0))[::-1]
        growth = np.exp(-np.diff(t[::-1]))  # e^(t_i − t_{i+1}) > 1
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
        """Points whose join lies over f: above and right of vertices of the optimistic law."""
        _, alpha, alpha_error, beta, beta_error = self.sides[Side.OPTIMISTIC].vertices
        q_infinite, _ = self.sides[Side.OPTIMISTIC].factor.infinite
        a = np.minimum.accumulate(np.clip(alpha + alpha_error, 0.0, 1.0))[::-1]
        b = np.minimum.accumulate(np.clip(beta + beta_error, 0.0, 1.0)[::-1])
        return np.concatenate(([0.0], a, [1.0])), np.concatenate(([1 - q_infinite], b, [0.0]))

    def mu(self, alpha_min: float) -> Bound:
        """Least μ with f ≥ G_μ on [alpha_min, 1 − alpha_min], in both orders of the pair.

        G_μ is convex, so a curve of chords lies above it as soon as its vertices and the two ends of the range do.
        """
        return Bound(_largest_mu(*self.upper_curve, alpha_min), _largest_mu(*self.lower_curve, alpha_min))


def _largest_mu(alpha: Array, beta: Array, alpha_min: float) -> float:
    ends = np.array([alpha_min, 1 - alpha_min])
    largest = 0.0
    for one, other in ((alpha, beta), (beta[::-1], alpha[::-1])):
        inside = (one >= alpha_min) & (one <= 1 - alpha_min)
        x = np.concatenate((one[inside], ends))
        y = np.concatenate((other[inside], np.interp(ends, one, other)))
        largest = max(largest, float(np.max(-ndtri(x) - ndtri(np.minimum(y, 1.0)))))
    return largest
