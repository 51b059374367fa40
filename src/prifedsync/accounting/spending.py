"""Privacy budgets that are spent over time. A filter is a frozen value: spending returns a new filter.

Exact composition is valid for plans that are fixed in advance. It is *not* a valid filter for mechanisms that are chosen
adaptively: a worked counterexample reaches 1.8 δ. So there is no such filter here. These are valid:
    FixedMechanism   one mechanism and a limit on its releases; unused ones only help
    GaussianFilter   Σ μ_i² ≤ μ² for full-batch Gaussian releases chosen adaptively (Smith, Thakurta 2022)
    RenyiFilter      Σ ρ_i(a) ≤ ρ at one order a fixed in advance, for other mechanisms (Feldman, Zrnic 2021)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..fdp import TradeOff, gaussian
from ..fdp.closed import Closed, Gaussian
from ..values import BadValue, number, whole
from .plan import PrivacyPlan

ROUNDING = 1e-12  # so that 100 releases of μ = 0.1 fit a budget of 1; the reported guarantee is larger by the same factor


class BudgetSpent(Exception):
    """The budget does not cover this release. Nothing was released, and the filter is unchanged."""


@dataclass(frozen=True)
class FixedMechanism:
    """A budget of `plan.slots` releases of the plan's own mechanism: its rounds, and its spare attempts."""

    plan: PrivacyPlan
    taken: int = 0

    def __post_init__(self) -> None:
        whole("taken", self.taken, 0, self.plan.slots)

    def spend(self, plan: PrivacyPlan) -> FixedMechanism:
        """The filter after one more slot of exactly this plan. Raises `BudgetSpent` if none is left."""
        if plan != self.plan:
            rule = "differs from the plan that this budget was made for"
            raise BadValue("plan", plan, rule, "use a GaussianFilter or a RenyiFilter")
        if self.taken >= self.plan.slots:
            spare = f" and {self.plan.attempts} spare attempts" if self.plan.attempts else ""
            raise BudgetSpent(f"all {self.plan.rounds} rounds{spare} of the plan are taken")
        return replace(self, taken=self.taken + 1)

    def guarantee(self) -> TradeOff:
        """The guarantee of the slots so far, if participation was honest and stopping did not depend on the data."""
        return self.plan.guarantee(taken=self.taken)


@dataclass(frozen=True)
class GaussianFilter:
    """A budget Σ μ_i² ≤ μ² for Gaussian releases. Each release may depend on all earlier ones."""

    mu: float
    spent: float = 0.0  # Σ μ_i²

    def __post_init__(self) -> None:
        number("mu", self.mu, 0, ends="(]")
        number("spent", self.spent, 0, self.mu**2 * (1 + ROUNDING))

    def spend(self, f: TradeOff, count: int = 1) -> GaussianFilter:
        """The filter after `count` releases of f. Raises `BudgetSpent` if they do not fit into the budget."""
        if not isinstance(f, Gaussian):
            raise BadValue("release", type(f).__name__, "is not a Gaussian trade-off function", "use a RenyiFilter")
        after = self.spent + whole("count", count, 1) * f.mu().upper ** 2
        if after > self.mu**2 * (1 + ROUNDING):
            raise BudgetSpent(f"μ would become {math.sqrt(after):.6g}, the budget is {self.mu:g}")
        return replace(self, spent=after)

    def guarantee(self) -> TradeOff:
        """The guarantee of the whole budget. It may be reported whenever spending stops."""
        return gaussian(self.mu * (1 + ROUNDING))


@dataclass(frozen=True)
class RenyiFilter:
    """A budget Σ ρ_i ≤ ρ at one Rényi order, for mechanisms in closed form. Each may depend on all earlier ones."""

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
            raise BadValue(
                "order", order, f"leaves no budget for ε = {epsilon:g} at δ = {delta:g}", "choose a higher order"
            )
        return RenyiFilter(order, rho)

    def spend(self, f: TradeOff, count: int = 1) -> RenyiFilter:
        """The filter after `count` releases of f. Raises `BudgetSpent` if they do not fit into the budget."""
        if not isinstance(f, Closed):
            raise BadValue(
                "release", type(f).__name__, "has no Rényi divergence in closed form", "spend its elementary steps"
            )
        after = self.spent + whole("count", count, 1) * f.renyi(self.order)
        if after > self.rho:
            raise BudgetSpent(f"ρ would become {after:.6g}, the budget is {self.rho:.6g} at order {self.order:g}")
        return replace(self, spent=after)

    def epsilon(self, delta: float) -> float:
        """ε of the whole budget. It may be reported whenever spending stops."""
        return self.rho + math.log(1 / number("delta", delta, 0, 1, ends="()")) / (self.order - 1)
