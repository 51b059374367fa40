"""What one client does when it takes part: its plan, read by the accounting too, and what costs no privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..accounting import NoisySteps, OutputPerturbation, PrivacyPlan
from ..fdp import Neighbours
from ..rules import Numbers
from ..values import BadValue, number, whole
from .batches import UnnoisedSteps
from .optimisers import Optimiser

LEAST_SPREAD = 1e-6  # of noise that is added to weights in single precision: what is smaller, weights of size 1 round away
LARGEST_HELPER = 1e4  # entries of what the server sends are cut to this: a public rule about a public value


Part = Literal["upload", "kept"]  # of a round: what is sent, and what stays


@dataclass(frozen=True)
class Phase:
    """Some of a round's steps: those for the upload, or those for a model of the client's own."""

    first: int  # the number of its first step in the round
    steps: int
    noisy: bool
    averaged_from: int  # the first step (from 0, in this phase) whose iterate is averaged into what comes out


@dataclass(frozen=True, kw_only=True)
class Job:
    """One client's local training. Without a plan there is no noise and no guarantee."""

    client: str
    plan: PrivacyPlan | None
    optimiser: Optimiser
    unnoised_steps: UnnoisedSteps | None = None  # how it trains where the plan is not about steps
    averaging: float = 0.0  # share of the last iterates that are averaged into the upload
    mixing: float = 1.0
    strength: float = 0.0
    kept_steps: int = 0  # for a model of the client's own
    weight: float = 1.0  # of its upload in the server's mean: a public number
    participation: float = 1.0  # the chance to take part in a round: the client's own coin
    kept_counted: bool = False  # they are the last of `steps`, and noisy where those are; else they come on top, open

    def __post_init__(self) -> None:
        number("averaging", self.averaging, 0, 1)
        number("participation", self.participation, 0, 1, ends="(]")
        if self.plan and self.plan.participation != self.participation:
            rule = f"is not that of the plan, {self.plan.participation:g}"
            raise BadValue("participation", self.participation, rule, "the coin must be the one that is accounted")
        number("mixing", self.mixing, 0, 1)
        number("strength", self.strength, 0)
        number("weight", self.weight, 0, ends="(]")
        whole("kept_steps", self.kept_steps, 0)
        if (self.unnoised_steps is None) != (self.noisy is not None):
            raise BadValue("unnoised_steps", self.unnoised_steps, "must be given exactly where the plan has no noisy steps")
        if self.kept_counted and self.kept_steps > self.steps.local_steps:
            raise BadValue("kept_steps", self.kept_steps, f"are more than all local_steps = {self.steps.local_steps}")

    @property
    def noisy(self) -> NoisySteps | None:
        return self.plan.mechanism.steps if self.plan else None

    @property
    def output(self) -> OutputPerturbation | None:
        return self.plan.mechanism.output if self.plan else None

    @property
    def steps(self) -> NoisySteps | UnnoisedSteps:
        steps = self.noisy or self.unnoised_steps
        assert steps is not None  # __post_init__
        return steps

    def phase(self, part: Part) -> Phase:
        return self.upload if part == "upload" else self.kept

    @property
    def upload(self) -> Phase:
        """The steps that what is sent is made of."""
        steps = self.steps.local_steps - (self.kept_steps if self.kept_counted else 0)
        return Phase(0, steps, self.noisy is not None, max(0, min(steps - 1, steps - round(self.averaging * steps))))

    @property
    def upload_queries(self) -> int:
        """How often noise is added to what is sent in a round; those of a model that stays come later."""
        assert self.plan is not None
        return self.upload.steps if self.noisy else 1

    @property
    def kept(self) -> Phase:
        """The steps for the client's own model; their numbers, and so their batches, follow those of the upload."""
        counted = self.kept_counted and self.noisy is not None
        return Phase(self.upload.steps, self.kept_steps, counted, max(0, self.kept_steps - 1))

    def attempt(self, number: int) -> Phase:
        """The upload's steps when a round is repeated: under numbers, and so with batches and noise, of their own."""
        return replace(self.upload, first=number * (self.upload.steps + self.kept_steps))

    def check(self, present: int, arithmetic: str, clip_margin: float) -> None:
        """Refuse a plan that is not about these records, or whose margin does not cover the arithmetic."""
        steps = self.steps
        fixed_count = self.plan is None or self.plan.neighbours is Neighbours.REPLACE
        if fixed_count and steps.records != present:
            raise BadValue(
                f"clients.{self.client}.records", steps.records, f"but the client has {present}",
                "under replace-one neighbours the number is public and must be right",
            )  # fmt: skip
        self.check_spread(arithmetic)
        if self.noisy and self.noisy.clip_margin < clip_margin:
            raise BadValue(
                f"clients.{self.client}.clip_margin", self.noisy.clip_margin, f"does not cover rounding in {arithmetic}",
                f"plan with at least {clip_margin:g}",
            )  # fmt: skip

    def check_spread(self, arithmetic: str) -> None:
        """Refuse noise that is lost where it is added to weights in this arithmetic."""
        if self.output is None or arithmetic == "float64":
            return
        if self.output.noise_scale < LEAST_SPREAD:
            rule = f"times noise_multiplier is below {LEAST_SPREAD:g}: {arithmetic} weights would lose such noise"
            remedy = 'raise one of the two, or set performance.dtype = "float64"'
            raise BadValue(f"clients.{self.client}.clip_norm", self.output.clip_norm, rule, remedy)


def numbers_of(jobs: Sequence[Job], taken: Sequence[int], like: Tensor) -> Numbers:
    """The public numbers of these clients, as rules read them, after so many rounds of each."""
    rows = [
        (job.mixing, job.strength, job.optimiser.pace(max(0, rounds)) * job.upload.steps)
        for job, rounds in zip(jobs, taken, strict=True)
    ]
    return Numbers(*column(rows, like).reshape(-1, 3, 1).unbind(1))


def column(values: Sequence[float] | Sequence[tuple[float, ...]], like: Tensor) -> Tensor:
    """One row a client, of the dtype and on the device of `like`; the host does not wait for it."""
    made = torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)
    return made.unsqueeze(1) if made.dim() == 1 else made
