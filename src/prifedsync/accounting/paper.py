"""The paper's statements as printed, for comparison only. The certified guarantee is `PrivacyPlan.guarantee`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..fdp import TradeOff, compose, epsilon_delta, maximum
from ..fdp.asymptotic import clt_fixed_size
from ..values import BadValue, whole
from .plan import PrivacyPlan


def mu_weak(plans: Iterable[PrivacyPlan]) -> float:
    """μ_max of `thm:alg_1_and_2`: the largest CLT value over the clients. It is asymptotic, not a bound."""
    values = []
    for plan in plans:
        steps = plan.mechanism.steps
        if steps is None:
            name = type(plan.mechanism).__name__
            raise BadValue("mechanism", name, "has no μ in the paper", "use a mechanism with noisy steps")
        values.append(clt_fixed_size(steps.noise_multiplier / 2, steps.rate, steps.local_steps * plan.slots))
    return max(values)


def mu_strong(plans: Iterable[PrivacyPlan], clients: int) -> float:
    """√(m−1)·μ_max of `thm:alg_1_and_2`. It assumes independent helpers and is false for small m."""
    return math.sqrt(whole("clients", clients, 2, remedy="collusion needs at least one other client") - 1) * mu_weak(plans)


@dataclass(frozen=True)
class Printed:
    """A statement of the paper, whether it is sound, and why."""

    curve: TradeOff
    sound: bool
    why: str


def theorem_1(plan: PrivacyPlan) -> Printed:
    """g_{p,j}^⊗R of `thm:alg_1` with g = max(f_j, 1 − α − p²), computed numerically: it has no explicit form."""
    one_round = compose(*plan.one_round())
    amplified = maximum(one_round, epsilon_delta(0.0, plan.participation**2))
    if plan.slots == 1:
        return Printed(amplified, True, "one round: `lemma:one_update_sampled`")
    why = (
        "false for more than one round: hidden state carries information about a record to client i in rounds where "
        "i and j are not both sampled (docs/maths.md has the counterexample)"
    )
    return Printed(compose((amplified, plan.slots)), False, why)
