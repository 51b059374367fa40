"""Which records a step looks at: each by its own coin, a subset of fixed size, or all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..accounting import NoisySteps, Sampling
from ..values import BadValue, choice, whole
from .draws import Draws, Key


@dataclass(frozen=True, kw_only=True)
class UnnoisedSteps:
    """Steps without clipping or noise: what is trained so has no guarantee of its own."""

    records: int
    batch: int | Literal["full"]
    local_steps: int
    sampling: Sampling = Sampling.POISSON

    def __post_init__(self) -> None:
        whole("records", self.records, 1)
        whole("local_steps", self.local_steps, 1)
        choice("sampling", self.sampling, Sampling)
        if self.batch != "full" and whole("batch", self.batch, 1) > self.records:
            raise BadValue("batch", self.batch, f"is larger than records = {self.records}", 'take fewer, or batch = "full"')

    @property
    def rate(self) -> float:
        return 1.0 if self.batch == "full" else self.batch / self.records


def expected_size(steps: NoisySteps | UnnoisedSteps) -> int:
    """What a sum over a batch is divided by: a public number, whatever the batch turned out to be."""
    return steps.records if steps.batch == "full" else steps.batch


def choose(steps: NoisySteps | UnnoisedSteps, present: int, client: str, round: int, step: int, draws: Draws) -> Tensor:
    """The records of one step, in ascending order; every step of every round draws its own.

    `present` is how many records there really are; the rate comes from the nominal number.
    """
    if steps.rate >= 1:
        return torch.arange(present)
    uniforms = draws.uniform(Key(client, round, step, "batch"), present)
    if steps.sampling is Sampling.POISSON:
        return torch.nonzero(uniforms < steps.rate).flatten()
    return torch.sort(torch.argsort(uniforms)[: steps.batch]).values
