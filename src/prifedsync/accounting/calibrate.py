"""Find the noise, the rounds or the batch that meets a target, never exceeding it; noise is within 0.1 %."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Literal

from ..fdp import TradeOff
from ..limits import LEAST_NOISE
from ..values import BadValue, number
from .plan import Participation, PrivacyPlan

Solve = Literal["noise", "rounds", "batch"]
CLOSE = 1e-3  # how far under the target calibrated noise may leave the guarantee, relative
FURTHEST_NOISE = 1e4  # where the search gives up
FURTHEST_STEPS = 10**7


class CannotMeet(Exception):
    """No value in the search range meets the target. This is an answer, not a program error."""


@dataclass(frozen=True)
class Target:
    """The value that a certified upper bound must not exceed: ε at δ, μ on a range of α, or the advantage of any attack."""

    kind: Literal["epsilon", "mu", "advantage"]
    value: float
    delta: float = 1e-5
    alpha_min: float = 1e-5

    def __post_init__(self) -> None:
        if self.kind not in ("epsilon", "mu", "advantage"):
            raise BadValue("target", self.kind, "must be epsilon, mu or advantage")
        number(f"target_{self.kind}", self.value, 0, 1 if self.kind == "advantage" else 1e3, ends="()")
        number("delta", self.delta, 0, 1, ends="()")
        number("alpha_min", self.alpha_min, 1e-9, 0.1)

    def spent(self, f: TradeOff) -> float:
        """The certified upper bound of f, in the unit of the target."""
        if self.kind == "epsilon":
            return f.epsilon(self.delta).upper
        return (f.mu(self.alpha_min) if self.kind == "mu" else f.advantage()).upper

    def __str__(self) -> str:
        return {"epsilon": f"ε = {self.value:g} at δ = {self.delta:g}", "mu": f"μ = {self.value:g}"}.get(
            self.kind, f"advantage = {self.value:g}"
        )


def calibrated(
    plan: PrivacyPlan, target: Target, solve: Solve = "noise", participation: Participation = "honest"
) -> PrivacyPlan:
    """A new plan that meets the target. Raises `CannotMeet` with the reason if there is none."""

    def spent(candidate: PrivacyPlan) -> float:
        return target.spent(candidate.guarantee(participation))

    if solve == "noise":
        return _least_noise(plan, target, spent)
    if solve == "rounds":
        highest = max(1, FURTHEST_STEPS // plan.mechanism.queries_per_round)
    elif solve == "batch" and plan.mechanism.steps:
        highest = plan.mechanism.steps.records
    else:
        raise BadValue("solve", solve, "must be noise, rounds or batch (batch only for noisy steps)")
    best = _largest(lambda n: spent(plan.changed(**{solve: n})) <= target.value, highest)
    if best == 0:
        raise CannotMeet(f"{solve} = 1 already exceeds it; add noise")
    return plan.changed(**{solve: best})


def _largest(fits: Callable[[int], bool], highest: int) -> int:
    """The largest n up to `highest` that fits, or 0 if none does. If n fits, so does every smaller number."""
    low, high = 0, 1
    while high < highest and fits(high):
        low, high = high, min(2 * high, highest)
    if high == highest and fits(highest):
        return highest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _least_noise(plan: PrivacyPlan, target: Target, spent: Callable[[PrivacyPlan], float]) -> PrivacyPlan:
    def at(noise: float) -> float:
        return spent(plan.changed(noise_multiplier=noise))

    low, low_spent = LEAST_NOISE, float("inf")  # low exceeds the target, high meets it
    high, high_spent = 1.0, at(1.0)
    while high_spent > target.value:
        low, low_spent = high, high_spent
        high *= 2
        if high > FURTHEST_NOISE:
            raise CannotMeet(f"it needs a noise multiplier above {FURTHEST_NOISE:g}")
        high_spent = at(high)
    while high_spent < target.value * (1 - CLOSE):
        if high <= LEAST_NOISE * (1 + CLOSE):
            break  # the least noise that a plan may have already meets the target
        guess = (low * high) ** 0.5
        if low_spent < float("inf") and high_spent > 0:
            # the privacy loss is roughly a power of the noise: interpolate in logarithms, just under the target
            share = log(low_spent / target.value / (1 - CLOSE / 2)) / log(low_spent / high_spent)
            guess = low * (high / low) ** min(max(share, 0.05), 0.98)
        elif high > 2 * LEAST_NOISE:
            guess = high / 2
        guess_spent = at(guess)
        if guess_spent > target.value:
            low, low_spent = guess, guess_spent
        else:
            high, high_spent = guess, guess_spent
    return plan.changed(noise_multiplier=high)
