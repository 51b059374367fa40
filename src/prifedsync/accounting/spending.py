"""Spending a budget over time. Each filter is a value: spending returns a new one, and a refusal changes nothing.

Exact composition is for plans fixed in advance. Stopping by the exact composed curve over mechanisms chosen along the
way is *not* a valid filter (a worked counterexample reaches 1.8 δ), so there is none here. Valid are
    FixedMechanism   one mechanism, a cap on how often: unused rounds only help
    GaussianFilter   Σ μ² ≤ μ² for full-batch Gaussian releases chosen adaptively (Smith, Thakurta 2022)
    RenyiFilter      Σ ρ(a) ≤ ρ at one order a fixed in advance, for anything else (Feldman, Zrnic 2021)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..fdp import TradeOff, gaussian
from ..fdp.closed import Closed, Gaussian
from ..values import BadValue, number, whole
from .plan import PrivacyPlan

ROUNDING = 1e-12  # a hundred times 0.1 must fit a budget of 1; the guarantee reported is wider by as much


class BudgetSpent(Exception):
    """Refused before anything was released; the filter is as it was."""


@dataclass(frozen=True)
class FixedMechanism:
    """At most `plan.rounds` rounds of the plan's own mechanism."""

    plan: PrivacyPlan
    taken: int = 0

    def __post_init__(self) -> None:
        whole("taken", self.taken, 0, self.plan.rounds)

    def spend(self, plan: PrivacyPlan) -> FixedMechanism:
        """One more round of exactly this plan."""
        if plan != self.plan:
            raise BadValue(
                "plan", plan, "differs from the plan this budget was made for", "start a filter made for changes"
            )
        if self.taken >= self.plan.rounds:
            raise BudgetSpent(f"all {self.plan.rounds} rounds of the plan are taken")
        return replace(self, taken=self.taken + 1)

    def guarantee(self) -> TradeOff:
        """What the rounds taken so far amount to, if the coin was honest and they stopped for no reason in the data."""
        return self.plan.guarantee(taken=self.taken)


@dataclass(frozen=True)
class GaussianFilter:
    """Σ μ_i² ≤ μ², for Gaussian releases only, each chosen with all earlier ones in view."""

    mu: float
    spent: float = 0.0  # Σ μ_i²

    def __post_init__(self) -> None:
        number("mu", self.mu, 0, ends="(]")
        number("spent", self.spent, 0, self.mu**2 * (1 + ROUNDING))

    def spend(self, f: TradeOff, count: int = 1) -> GaussianFilter:
        if not isinstance(f, Gaussian):
            raise BadValue("release", type(f).__name__, "is not a plain Gaussian one", "use a RenyiFilter")
        after = self.spent + whole("count", count, 1) * f.mu().upper ** 2
        if after > self.mu**2 * (1 + ROUNDING):
            raise BudgetSpent(f"μ would become {math.sqrt(after):.6g}, the budget is {self.mu:g}")
        return replace(self, spent=after)

    def guarantee(self) -> TradeOff:
        """The whole budget: what may be reported whenever spending stops."""
        return gaussian(self.mu * (1 + ROUNDING))


@dataclass(frozen=True)
class RenyiFilter:
    """Σ ρ_i ≤ ρ at one Rényi order, for any mechanisms in closed form, each chosen with all earlier ones in view."""

    order: float
    rho: float
    spent: float = 0.0

    def __post_init__(self) -> None:
        number("order", self.order, 1, 128, ends="(]")
        number("rho", self.rho, 0, ends="(]")
        number("spent", self.spent, 0, self.rho)

    @staticmethod
    def for_target(epsilon: float, delta: float, order: float) -> RenyiFilter:
        """The largest ρ at this order that implies (ε, δ)-DP: ρ = ε − log(1/δ)/(a − 1)."""
        order = number("order", order, 1, 128, ends="(]")
        number("epsilon", epsilon, 0, ends="(]")
        rho = epsilon - math.log(1 / number("delta", delta, 0, 1, ends="()")) / (order - 1)
        if rho <= 0:
            raise BadValue("order", order, f"leaves no budget for ε = {epsilon:g} at δ = {delta:g}", "take a higher order")
        return RenyiFilter(order, rho)

    def spend(self, f: TradeOff, count: int = 1) -> RenyiFilter:
        if not isinstance(f, Closed):
            raise BadValue(
                "release", type(f).__name__, "has no Rényi divergence in closed form", "spend its elementary steps"
            )
        after = self.spent + whole("count", count, 1) * f.renyi(self.order)
        if after > self.rho:
            raise BudgetSpent(f"ρ would become {after:.6g}, the budget is {self.rho:.6g} at order {self.order:g}")
        return replace(self, spent=after)

    def epsilon(self, delta: float) -> float:
        """ε of the whole budget: what may be reported whenever spending stops."""
        return self.rho + math.log(1 / number("delta", delta, 0, 1, ends="()")) / (self.order - 1)
