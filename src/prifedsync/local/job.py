"""What one client does when it takes part: its plan, read by the accounting too, and what costs no privacy."""

from __future__ import annotations

from dataclasses import dataclass

from ..accounting import NoisySteps, OutputPerturbation, PrivacyPlan
from ..fdp import BadValue, Neighbours
from ..fdp.values import number
from .batches import OpenSteps
from .optimisers import Optimiser

LARGEST_HELPER = 1e4  # entries of what the server sends are cut to this: a public rule about a public value


@dataclass(frozen=True, kw_only=True)
class Job:
    """One client's local training. Without a plan there is no noise and no guarantee."""

    client: str
    plan: PrivacyPlan | None
    optimiser: Optimiser
    open_steps: OpenSteps | None = None  # how it trains where the plan is not about steps
    averaging: float = 0.0  # share of the last iterates that are averaged into the upload
    mixing: float = 1.0

    def __post_init__(self) -> None:
        number("averaging", self.averaging, 0, 1)
        number("mixing", self.mixing, 0, 1)
        if (self.open_steps is None) != (self.noisy is not None):
            raise BadValue("open_steps", self.open_steps, "must be given exactly where the plan has no noisy steps")

    @property
    def noisy(self) -> NoisySteps | None:
        mechanism = self.plan.mechanism if self.plan else None
        return mechanism if isinstance(mechanism, NoisySteps) else None

    @property
    def output(self) -> OutputPerturbation | None:
        mechanism = self.plan.mechanism if self.plan else None
        return mechanism if isinstance(mechanism, OutputPerturbation) else None

    @property
    def steps(self) -> NoisySteps | OpenSteps:
        steps = self.noisy or self.open_steps
        assert steps is not None  # __post_init__
        return steps

    @property
    def averaged_from(self) -> int:
        """The first step (from 0) whose iterate is averaged into the upload."""
        steps = self.steps.local_steps
        return min(steps - 1, steps - round(self.averaging * steps))

    def check(self, present: int, arithmetic: str, clip_margin: float) -> None:
        """Refuse a plan that is not about these records, or whose margin does not cover the arithmetic."""
        steps = self.steps
        fixed_count = self.plan is None or self.plan.neighbours is Neighbours.REPLACE
        if fixed_count and steps.records != present:
            raise BadValue(
                f"clients.{self.client}.records", steps.records, f"but the client has {present}",
                "under replace-one neighbours the number is public and must be right",
            )  # fmt: skip
        if self.noisy and self.noisy.clip_margin < clip_margin:
            raise BadValue(
                f"clients.{self.client}.clip_margin", self.noisy.clip_margin, f"does not cover rounding in {arithmetic}",
                f"plan with at least {clip_margin:g}",
            )  # fmt: skip
