"""Random participation in a run: its rate, and whether a draw is used again in another round, client or run.

Clients are asked as in training, and train nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..local import Draws, UnnoisedSteps
from ..local.client import Client
from ..planning import participation_of
from ..run import Prepared
from . import statistics
from .check import CHANCE, Check
from .statistics import Event
from .subject import another_key

CLIENTS = 8
ROUNDS = 200


def check_coins(prepared: Prepared, draws: Draws) -> Check:
    """Draws under two keys, at the rate of the config and at one half, where repetitions have an exact distribution."""
    rate = participation_of(prepared.config, prepared.rule)
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
    """Who takes part, [clients, rounds]: each client is asked in every round, as a run asks it, and trains nothing."""
    present = np.zeros((CLIENTS, ROUNDS))
    for i, job in enumerate(prepared.jobs[:CLIENTS]):
        # the coin of a client without a budget: only the toss is looked at
        unnoised = UnnoisedSteps(records=1, batch="full", local_steps=1)
        alone = replace(job, plan=None, unnoised_steps=unnoised, kept_steps=0, participation=rate)
        client = Client(alone, draws, records=1)
        for round in range(ROUNDS):
            present[i, round] = client.join(round, draws) is None
    return present[: len(prepared.jobs)]
