"""Find the noise, the rounds or the batch that meets a target, never exceeding it; noise is within 0.1 %."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt
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

    def spent_with_noise(noise: float) -> float:
        return spent(plan.changed(noise_multiplier=noise))

    if solve == "noise":
        return plan.changed(noise_multiplier=LeastNoise(spent_with_noise, target.value).found())
    if solve == "rounds":
        highest = max(1, FURTHEST_STEPS // plan.mechanism.queries_per_round - plan.attempts)
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


@dataclass(frozen=True)
class Start:
    """Where a search for noise begins: at an expected answer, with −d log(loss)/d log(noise) there."""

    noise: float
    slope: float


class LeastNoise:
    """The search for the least noise that meets a target: `low` exceeds the target, `high` meets it.

    Whatever it starts from, `high` is noise whose certified bound was computed and found not above the target. A good start
    saves evaluations, and a bad one costs some.
    """

    def __init__(self, spent: Callable[[float], float], target: float) -> None:
        self.spent = spent
        self.target = target
        self.aim = target * (1 - CLOSE / 2)  # just under the target
        self.low, self.low_spent = LEAST_NOISE, float("inf")
        self.high, self.high_spent = float("inf"), float("-inf")

    def found(self, start: Start | None = None) -> float:
        noise = start.noise if start else 1.0
        while True:
            self._try(noise)
            if self.high_spent >= self.target * (1 - CLOSE) or self.high <= LEAST_NOISE * (1 + CLOSE):
                return self.high  # close enough, or the least noise that a plan may have already meets the target
            noise = self._next(start.slope if start else None)
            if noise > FURTHEST_NOISE:
                raise CannotMeet(f"it needs a noise multiplier above {FURTHEST_NOISE:g}")

    def _try(self, noise: float) -> None:
        now = self.spent(noise)
        if now > self.target:
            self.low, self.low_spent = noise, now
        else:
            self.high, self.high_spent = noise, now

    def _next(self, slope: float | None) -> float:
        """The privacy loss is roughly a power of the noise: interpolate in logarithms, or follow the slope."""
        exceeded = self.low_spent < float("inf")
        if self.high == float("inf"):
            return self.low * min(2.0, exp(log(self.low_spent / self.aim) / slope)) if slope and exceeded else 2 * self.low
        if exceeded and self.high_spent > 0:
            share = log(self.low_spent / self.aim) / log(self.low_spent / self.high_spent)
            return self.low * exp(log(self.high / self.low) * min(max(share, 0.05), 0.98))
        if slope and self.high_spent > 0:
            return max(LEAST_NOISE * (1 + CLOSE), self.high / 2, self.high * exp(log(self.high_spent / self.aim) / slope))
        return self.high / 2 if self.high > 2 * LEAST_NOISE and not exceeded else sqrt(self.low * self.high)

    @property
    def slope(self) -> float | None:
        """−d log(loss)/d log(noise) between the last two that the answer lies between; None if one of them is missing."""
        if not (self.low_spent < float("inf") and self.high < float("inf") and self.high_spent > 0):
            return None
        return log(self.low_spent / self.high_spent) / log(self.high / self.low)
