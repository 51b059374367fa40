"""The learning rate over the rounds of one client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...values import BadValue, number, whole


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate's factor in a client's n-th round of its own."""

    kind: Literal["constant", "step", "cosine", "inverse-sqrt"] = "constant"
    every: int = 10
    factor: float = 0.99
    rounds: int = 1  # planned, for cosine

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "step", "cosine", "inverse-sqrt"):
            raise BadValue("schedule", self.kind, "must be constant, step, cosine or inverse-sqrt")
        whole("schedule_every", self.every, 1)
        number("schedule_factor", self.factor, 0, 1, ends="(]")
        whole("schedule_rounds", self.rounds, 1)

    def at(self, taken: int) -> float:
        if self.kind == "step":
            return self.factor ** (taken // self.every)
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(taken / self.rounds, 1)))
        return 1 / math.sqrt(1 + taken) if self.kind == "inverse-sqrt" else 1.0


CONSTANT = Schedule()
