"""What a run tells while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .accounting.progress import WorstEpsilon
from .record import (
    Score,
)


@dataclass(frozen=True)
class RoundDone:
    """What is known after a round; `phase` is "private", "non-private", or what is trained for comparison."""

    phase: str
    round: int
    rounds: int
    participants: int
    personal: Score | None
    released: Score | None
    seconds: float
    spending: WorstEpsilon | None  # None without a guarantee
    seeded: bool

    def epsilon_so_far(self) -> float | None:
        """An upper bound on every client's ε after these rounds; `spending.seconds` says how long the last one took."""
        return self.spending.after(self.round) if self.spending else None

    def epsilon_planned(self) -> float | None:
        """An upper bound on every client's ε after all rounds."""
        return self.spending.after(self.rounds) if self.spending else None


@dataclass(frozen=True)
class Working:
    """Something else takes time: what, and how far it is."""

    what: str
    done: int
    of: int


Watch = Callable[[RoundDone | Working], None]

Until = Callable[[RoundDone], bool]
