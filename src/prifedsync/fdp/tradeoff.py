"""Trade-off functions as values, and their numbers.

f(α) is the smallest type-II error of a test with type-I error α between two neighbouring data sets (Dong, Roth, Su 2022).
Neighbours are an unordered pair. So δ, ε, μ, the total variation and the numbers about attacks are for the worse of the two
orders. f itself is T(P, Q), `inverse()` is T(Q, P), and `symmetrised()` is min{f, f⁻¹}**, which holds for both orders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from functools import cached_property

import numpy as np

from ..values import BadValue, number
from .bounds import Array, Bound
from .certify import Certified
from .lattice import Side, discretise, nodes
from .law import Factor, Leaf
from .profile import Profile, reach

DEFAULT_TOLERANCE = 1e-4  # target width of a composition's bracket in ε at δ = 1e−5 (relative if ε < 1)


class Answer(Enum):
    """Whether f ≥ g everywhere. It is undecided if the two brackets cannot tell."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


class TradeOff(ABC):
    """A trade-off function: the least false negative rate of any attack at each false positive rate α.

    Every number it gives is a certified bracket, and f(α) is a certified lower bound.
    """

    @property
    @abstractmethod
    def symmetric(self) -> bool: ...

    @property
    @abstractmethod
    def steps(self) -> int:
        """The largest number of elementary mechanisms that it composes."""

    @property
    def kinks(self) -> frozenset[float]:
        return frozenset()

    @abstractmethod
    def profile(self, side: Side) -> Profile:
        """δ(ε) in closed form, certified from the given side."""

    def factor(self, step: float, side: Side) -> Factor:
        """The distribution of the privacy loss on a lattice, ready to be composed."""
        return Leaf(discretise(self.profile(side), step, side), step)

    @property
    def tolerance(self) -> float:
        return DEFAULT_TOLERANCE

    @cached_property
    def certified(self) -> Certified:
        return Certified(self.factor, self.symmetric, self.steps, self.kinks, self.tolerance)

    def __call__(self, alpha: float | Array) -> Array:
        """Certified lower bound on f(α)."""
        return np.interp(levels_of(alpha), *self.certified.lower_curve)

    def upper(self, alpha: float | Array) -> Array:
        """Certified upper bound on f(α)."""
        levels = levels_of(alpha)
        return np.minimum(np.interp(levels, *self.certified.upper_curve), 1 - levels)

    def delta(self, epsilon: float) -> Bound:
        """The smallest δ such that (ε, δ)-DP holds in both orders; ε may be negative."""
        return self.certified.delta(number("epsilon", epsilon, -np.inf, ends="(]"))

    def epsilon(self, delta: float) -> Bound:
        """The smallest ε ≥ 0 such that (ε, δ)-DP holds. The upper end is infinite if no ε is enough for this δ."""
        return self.certified.epsilon(probability("delta", delta))

    def mu(self, alpha_min: float = 1e-5) -> Bound:
        """The smallest μ with f ≥ G_μ on [alpha_min, 1 − alpha_min]. A statement of μ must name this range."""
        return self.certified.mu(number("alpha_min", alpha_min, 1e-9, 0.1))

    def total_variation(self) -> Bound:
        """The total variation distance between the two outputs."""
        return self.delta(0.0)

    def advantage(self) -> Bound:
        """The true positive rate of the best attack minus its false positive rate, which is the total variation."""
        return self.total_variation()

    def positive_predictive_value(self, prior: float, alpha: float) -> Bound:
        """How often a membership attack with false positive rate α is right when it says yes, at this prior probability."""
        prior = number("prior", prior, 0, 1, ends="()")
        alpha = number("alpha", alpha, 0, 1, ends="()")
        both = self.symmetrised()
        powers = 1 - float(both.upper(alpha)), 1 - float(both(alpha))
        lower, upper = (prior * power / (prior * power + (1 - prior) * alpha) for power in powers)
        return Bound(lower, upper)

    @abstractmethod
    def inverse(self) -> TradeOff:
        """T(Q, P), the trade-off function with the two data sets exchanged."""

    @abstractmethod
    def symmetrised(self) -> TradeOff:
        """min{f, f⁻¹}**, which holds for both orders of the two data sets."""

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


def levels_of(alpha: float | Array) -> Array:
    levels = np.asarray(alpha, dtype=float)
    if np.all((levels >= 0) & (levels <= 1)):
        return levels
    raise BadValue("alpha", alpha, "must lie in [0, 1]", "give a false positive rate")


def probability(field: str, value: float) -> float:
    return number(field, value, 0, 1, ends="()", remedy="choose a small probability such as 1e-5")
