"""What all runs over the same records may spend together: one filter for plans that are chosen along the way.

    amount  what is added up over runs: Σ μ² where the budget is a μ, ρ at one Rényi order where it is ε at δ
    c       of a round that is asked, whatever the client's coin says; s of a spare attempt, where no coin is tossed
    a       the Rényi order, fixed when a ledger is made: a filter may not change it with releases in view

A run of R rounds and A spare attempts is reserved as R·c + A·s. Proofs: docs/maths.md, "Budgets over runs".
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from scipy.special import ndtri

from ..fdp import TradeOff
from ..fdp.closed import Closed, Gaussian
from ..fdp.profile import LaplaceHalf
from ..values import NOT_GIVEN, BadValue, number
from .plan import PrivacyPlan
from .spending import ROUNDING
from .statement import ALPHA_MIN

MOST = 1e3  # of a budget's μ or ε: more does not protect
UP = 1 + 1e-14  # outweighs the rounding of the few operations that make a cost of brackets
ORDERS = (*(1 + 2 ** (step / 16) for step in range(-96, 112)), 128.0)  # `Closed.renyi` takes no order above 128

BudgetUnit = Literal["mu", "epsilon"]
SIGN = {"mu": "μ", "epsilon": "ε"}  # of the unit of a budget


class Cost(NamedTuple):
    """What one run spends: `round` for each round that is asked, `spare` for each further attempt. Infinite: no bound."""

    round: float
    spare: float

    def of(self, rounds: int, attempts: int) -> float:
        """The amount of so many rounds and attempts. Nothing costs nothing, also where there is no bound."""
        counted = ((rounds, self.round), (attempts, self.spare))
        return math.fsum(count * cost for count, cost in counted if count)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A largest μ, or a largest ε at δ, over all runs. `order` is chosen from ε and δ unless it is given."""

    mu: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    order: float | None = None

    def __post_init__(self) -> None:
        if (self.mu is None) == (self.epsilon is None):
            remedy = "set mu, or epsilon and delta"
            rule = "must have exactly one of mu and epsilon"
            raise BadValue("budget", NOT_GIVEN, rule, remedy)
        number("budget.delta", self.delta, 0, 1, ends="()")
        if self.mu is not None:
            number("budget.mu", self.mu, 0, MOST, ends="(]")
            if self.order is not None:
                raise BadValue("budget.order", self.order, "belongs to a budget of epsilon", "leave it out")
        if self.epsilon is not None:
            number("budget.epsilon", self.epsilon, 0, MOST, ends="(]")
            best = max(ORDERS, key=lambda order: self._rho(order) / order)
            object.__setattr__(self, "order", number("budget.order", self.order or best, 1, 128, ends="(]"))

    @property
    def unit(self) -> BudgetUnit:
        """What is bounded. A ledger keeps it: amounts of the two cannot be added."""
        return "epsilon" if self.mu is None else "mu"

    @property
    def limit(self) -> float:
        """The largest amount. Where the order is too low for so small an ε, it is less than any release costs."""
        if self.mu is not None:
            return self.mu**2
        assert self.order is not None
        return max(sys.float_info.min, self._rho(self.order))

    def covers(self, amount: float) -> bool:
        """Whether an amount fits, up to the rounding of sums: 100 releases of μ = 0.1 fit into a budget of 1."""
        return amount <= self.limit * (1 + ROUNDING)

    def cost(self, plan: PrivacyPlan) -> Cost:
        """What a run of this plan spends. Infinite where no bound is known: it is refused then, never accepted."""
        try:
            cost = _gaussian_cost(plan) if self.order is None else _renyi_cost(plan, self.order)
        except (BadValue, OverflowError):  # the order is too high for this mechanism in double precision
            return Cost(math.inf, math.inf)
        return Cost(*(plan.copies * each * UP for each in cost))

    def fits_alone(self, plan: PrivacyPlan) -> bool:
        """Whether the plan's own exact guarantee is within the budget: for a plan fixed before anything was released.

        A μ is that of false positive rates from 1e-5 to 1 − 1e-5, as wherever the μ of a plan is stated. Where others hold
        the same units, this plan is not all that leaves about them, and an exact guarantee does not add up with theirs.
        """
        if plan.copies > 1:
            return False
        try:
            guarantee = plan.guarantee()
            if self.mu is not None:
                return guarantee.mu(ALPHA_MIN).upper <= self.mu
            assert self.epsilon is not None
            return guarantee.epsilon(self.delta).upper <= self.epsilon
        except (BadValue, OverflowError):
            return False

    def spent_as(self, amount: float) -> float:
        """The μ, or the ε at δ, that holds when so much was spent; rounded up."""
        if amount <= 0:
            return 0.0
        if self.mu is not None:
            return self._up_to(amount, math.sqrt(amount) * UP, self.mu)
        assert self.order is not None
        assert self.epsilon is not None
        epsilon = max(0.0, amount + _offset(self.order, self.delta)) * (1 + ROUNDING)
        return self._up_to(amount, epsilon, self.epsilon)

    def _up_to(self, amount: float, value: float, whole: float) -> float:
        """What fits into the budget is stated as no more than the budget: that is what `covers` stands for."""
        return min(value, whole) if self.covers(amount) else max(value, whole)

    def _rho(self, order: float) -> float:
        assert self.epsilon is not None
        return self.epsilon - _offset(order, self.delta)

    def at(self, order: float | None) -> Budget:
        """The same budget at the order of a ledger that was made earlier."""
        return replace(self, order=order)


def _offset(order: float, delta: float) -> float:
    """ε − ρ of a mechanism with Rényi divergence ρ (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _gaussian_cost(plan: PrivacyPlan) -> Cost:
    """Σ μ² of one round. Neither a batch nor a coin makes the μ at very small α smaller, so neither counts."""
    steps = plan.mechanism.steps
    mechanism = plan.mechanism if steps is None else replace(steps, batch="full")
    once = math.fsum(count * _least_mu(f) ** 2 for f, count in mechanism.one_round(plan.neighbours))
    return Cost(once, once)


def _least_mu(f: TradeOff) -> float:
    """A μ with f ≥ G_μ at every α, rounded up; infinite where none is known."""
    if isinstance(f, Gaussian):
        return f.mu().upper
    if isinstance(f, Closed) and isinstance(f.pair.worse(), LaplaceHalf):
        (ceiling,) = f.kinks  # f ≥ f_{ε,0} ≥ G_μ with Φ(μ/2) = e^ε/(1 + e^ε), since a convex curve is below its chords
        return -2 * float(ndtri(1 / (1 + math.exp(ceiling)))) * (1 + ROUNDING)
    return math.inf


def _renyi_cost(plan: PrivacyPlan, order: float) -> Cost:
    """ρ of one round. The coin is visible, so E Λ^a is 1 with probability 1 − p, and that of a whole round otherwise."""
    spare = math.fsum(count * _renyi(f, order) for f, count in plan.one_round())
    scaled = (order - 1) * spare
    p = plan.participation
    if p == 1:
        return Cost(spare, spare)
    # log(1 − p + p·e^x), written so that neither a large nor a small x loses digits
    mixed = math.log1p(p * math.expm1(scaled)) if scaled < 1 else scaled + math.log(p + (1 - p) * math.exp(-scaled))
    return Cost(mixed / (order - 1) * (1 + ROUNDING), spare)


def _renyi(f: TradeOff, order: float) -> float:
    return f.renyi(order) if isinstance(f, Closed) else math.inf
