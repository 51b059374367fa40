"""Random participation in a run: its rate, and whether a draw is used again in another round, client or run.

Algorithm 1 runs as in training, with an engine that trains nobody and only records which clients were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .. import run
from ..local import Draws
from ..planning import participation_of
from ..rules import Noised, Server
from ..run import Prepared
from ..sync import Refused, Uploads
from . import statistics
from .check import CHANCE, Check
from .statistics import Event
from .subject import another_key

CLIENTS = 8
ROUNDS = 200


@dataclass
class Onlooker:
    """An engine that trains nobody: all its clients refuse."""

    asked: dict[int, list[int]] = field(default_factory=dict)

    def train(self, round: int, chosen: Sequence[int], weights: Tensor | None) -> Uploads:
        self.asked[round] = list(chosen)
        return Uploads({i: Refused("only the coin is looked at") for i in chosen}, Noised(torch.zeros(0, 1)))

    def push(self, chosen: Sequence[int], weights: Tensor) -> None:
        """These clients need no helper."""


def check_coins(prepared: Prepared, draws: Draws) -> Check:
    """Draws under two keys, at the rate of the config and at one half, where repetitions have an exact distribution."""
    rate = participation_of(prepared.config)
    if rate >= 1:
        return Check("participation coin", "everybody, always", "everybody, always", True, _COIN)
    both = (draws, another_key(draws))
    taken = np.stack([tosses(prepared, each, rate) for each in both])
    frequency = Event("a client in a round", int(taken.sum()), taken.size, rate)
    fair = np.concatenate([tosses(prepared, each, 0.5) for each in both])
    chances = {
        str(frequency): frequency.chance,
        "rounds that repeat": statistics.repetition(fair - 0.5)[1],
        "clients or keys that agree": statistics.agreement(fair - 0.5),
    }
    worst = min(chances, key=lambda name: chances[name])
    passed = chances[worst] >= CHANCE
    return Check("participation coin", f"{worst} (p = {chances[worst]:.2g})", f"p at least {CHANCE:g}", passed, _COIN)


_COIN = (
    "Each client draws in secret, anew for each round, whether it takes part: amplification by participation needs this."
)


def tosses(prepared: Prepared, draws: Draws, rate: float) -> np.ndarray:
    """Who takes part, [clients, rounds]."""
    config = prepared.config.changed(participation=rate, rounds=ROUNDS)
    few = replace(prepared, config=config, jobs=prepared.jobs[:CLIENTS])
    onlooker = Onlooker()
    for _ in run.synchronised(few, onlooker, draws, Server(torch.zeros(1))):
        pass
    found = np.zeros((len(few.jobs), ROUNDS))
    for round, chosen in onlooker.asked.items():
        found[chosen, round] = 1
    return found
