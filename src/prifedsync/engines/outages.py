"""Simulated losses: who takes part, and is never heard of in that attempt."""

from __future__ import annotations

from dataclasses import dataclass

from ..local import Key, SeededDraws
from ..values import number


@dataclass(frozen=True)
class Outages:
    """Each upload is lost with the same probability, by coins of the run's seed. They are public, and no client's draws."""

    share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        number("lost", self.share, 0, 1, ends="[)")

    def lost(self, client: str, round: int, attempt: int = 0) -> bool:
        if not self.share:
            return False
        coin = SeededDraws(self.seed).uniform(Key(client, round, attempt, "lost"), 1)
        return coin.item() < self.share
