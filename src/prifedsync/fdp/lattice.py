"""A profile on a lattice: the discrete pair whose losses are multiples of `step`, certified on either side.

As a function of x = e^ε, δ is convex; a discrete pair with losses k·step is a convex function with kinks only at
the nodes x_k = e^(k·step), and composition keeps the order between such functions. So
    pessimistic   join δ(x_k) by chords: never below δ               (connect the dots, Doroshenko et al. 2022)
    optimistic    take a supporting line of δ in each cell, give each node the lower of its two lines, join: never above δ
Both errors are of second order in the step. Node values are shifted outwards by the rounding error of the closed form, so
the order also holds for the computed numbers. Forward nodes hold Q-mass, backward nodes P-mass, so neither underflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from math import expm1

import numpy as np

from .bounds import Array
from .profile import Half, Profile, reach

TAIL_CUT = 1e-60  # the tail below this δ counts as a complete leak (pessimistic) or is dropped (optimistic)
MAX_NODES = 1 << 21


class LatticeTooLong(OverflowError):
    """The losses of one mechanism need too many nodes. A coarser lattice would have fewer."""


class Side(Enum):
    PESSIMISTIC = "pessimistic"
    OPTIMISTIC = "optimistic"


@dataclass(frozen=True, eq=False)
class Masses:
    """A discrete pair: atoms at losses (first + i)·step, and masses at infinite losses."""

    first: int
    q: Array  # mass under Q
    p: Array  # mass under P: q·e^(−loss)
    q_infinite: float  # Q-mass where P has none
    p_infinite: float  # P-mass where Q has none

    def losses(self, step: float) -> Array:
        return (self.first + np.arange(self.q.size)) * step


def discretise(profile: Profile, step: float, side: Side) -> Masses:
    """The discrete pair that is no more private (pessimistic) or no less private (optimistic) than `profile`."""
    fore = nodes(profile.forward, step, side)
    back = fore if profile.symmetric else nodes(profile.backward, step, side)
    return masses(fore, back, step, side)


def masses(fore: Array, back: Array, step: float, side: Side) -> Masses:
    """The pair whose two halves are the convex hulls of these node values at ε = 0, step, 2·step, …"""
    outer = max if side is Side.PESSIMISTIC else min
    fore, back = fore.copy(), back.copy()
    fore[0] = back[0] = outer(fore[0], back[0])
    kept_fore, kept_back, zero = np.arange(fore.size), np.arange(back.size), True
    for attempt in count():
        if attempt == 12:  # many nodes off the hull: scan instead
            kept_fore, kept_back = _scan(fore, kept_fore, step), _scan(back, kept_back, step)
        weight_fore = _weights(fore, kept_fore, back, kept_back, zero, step)
        weight_back = _weights(back, kept_back, fore, kept_fore, zero, step)
        centre = _centre(fore, kept_fore, back, kept_back, step) if zero else 0.0
        bad_fore, bad_back = weight_fore < 0, weight_back < 0
        if centre >= 0 and not bad_fore.any() and not bad_back.any():
            break
        # nodes above the hull: drop every other one of a run, since its neighbours may be on the hull
        if centre < 0:
            zero = False
        kept_fore = np.delete(kept_fore, 1 + _alternate(bad_fore))
        kept_back = np.delete(kept_back, 1 + _alternate(bad_back))
    q, p = np.zeros(fore.size + back.size - 1), np.zeros(fore.size + back.size - 1)
    origin = back.size - 1
    q[origin + kept_fore[1:]] = weight_fore
    p[origin - kept_back[1:]] = weight_back
    q[origin] = p[origin] = centre
    losses = np.arange(-origin, fore.size) * step
    p[origin + 1 :] = q[origin + 1 :] * np.exp(-losses[origin + 1 :])
    q[:origin] = p[:origin] * np.exp(losses[:origin])
    return Masses(-origin, q, p, float(fore[-1]), float(back[-1]))


def _scan(values: Array, kept: np.ndarray, step: float) -> np.ndarray:
    """The nodes on the lower convex hull of one half, by a single pass with a stack."""
    stack: list[int] = []
    for node in kept.tolist():
        while len(stack) > 1:
            last, before = stack[-1], stack[-2]
            right = (values[node] - values[last]) / expm1(min((node - last) * step, 700.0))
            if right + (values[last] - values[before]) / expm1((before - last) * step) >= 0:
                break
            stack.pop()
        stack.append(node)
    return np.array(stack)


def _alternate(bad: np.ndarray) -> np.ndarray:
    """Positions of every other True in each run of Trues."""
    position = np.arange(bad.size)
    start = np.maximum.accumulate(np.where(~bad, position, -1))
    return np.flatnonzero(bad & ((position - start) % 2 == 1))


def _weights(own: Array, kept: np.ndarray, other: Array, other_kept: np.ndarray, zero: bool, step: float) -> Array:
    """The masses at the kept nodes beyond 0: x_k times the change of slope, computed without large powers of e."""
    if kept.size == 1:
        return np.zeros(0)
    rise, gap = np.diff(own[kept]), np.diff(kept) * step
    # x_k·(slope right − slope left): with −1/expm1(−g) = 1 + 1/expm1(g) rounding cancels between neighbours
    scaled = rise / np.expm1(np.minimum(gap, 700.0))
    left = scaled + rise
    if not zero:  # node 0 is above the hull: the first chord comes from the other half
        here, there = kept[1] * step, other_kept[1] * step
        left[0] = (1 - own[kept[1]] - np.exp(-there) * (1 - other[other_kept[1]])) / np.expm1(-(here + there))
    return np.asarray(np.append(scaled[1:], 0.0) - left)


def _centre(fore: Array, kept_fore: np.ndarray, back: Array, kept_back: np.ndarray, step: float) -> float:
    """The mass at loss 0: what the chords of both orders leave."""
    taken = fore[0]
    for own, kept in ((fore, kept_fore), (back, kept_back)):
        if kept.size > 1:
            taken += (own[0] - own[kept[1]]) / np.expm1(min(kept[1] * step, 700.0))
    rest = float(1 - taken)
    return max(rest, 0.0) if rest > -1e-15 * (1 + 1 / step) else rest  # a negative rounding error counts as 0


def nodes(half: Half, step: float, side: Side, cut: float = TAIL_CUT) -> Array:
    """Values at ε = 0, step, … whose chords stay above δ (pessimistic) or below it (optimistic)."""
    extent = reach(half, cut)
    size = int(np.ceil(extent / step)) + 2
    if size > MAX_NODES:
        raise LatticeTooLong(f"the loss of one mechanism reaches {extent:.3g}, too far for a lattice of step {step:.3g}")
    eps = np.arange(size) * step
    delta, _ = half.at(eps)
    if side is Side.PESSIMISTIC:
        return np.asarray(np.minimum(delta * (1 + half.accuracy), 1.0))
    middle, middle_tail = half.at(eps[:-1] + step / 2)
    at_left, at_right = middle - middle_tail * np.expm1(-step / 2), middle - middle_tail * np.expm1(step / 2)
    # where the line through the middle falls towards δ(∞) or under it, take the line through the right end, with the
    # slope just left of it (there may be an atom)
    low = np.flatnonzero(at_right - half.limit < 0.1 * (middle - half.limit))
    _, left_tail = half.at(eps[low + 1] * (1 - 1e-15))
    at_left[low] = delta[low + 1] - left_tail * np.expm1(-step)
    at_right[low] = delta[low + 1]
    values = np.append(at_left, at_right[-1])
    values[1:-1] = np.minimum(at_left[1:], at_right[:-1])
    # beyond the last node the value is constant, so it must not exceed δ(∞): lower all values by the (tiny) excess
    return np.asarray(np.maximum(values - (values[-1] - half.limit), half.limit) * (1 - half.accuracy))
