"""What one client learns of another's record over rounds: promised by `thm:alg_1`, exactly, and measured.

Client j protects nothing (f_j ≡ 0), helpers are the global model itself, η = 1, and whoever trains keeps a mark of where
it started. A model is marked once client j's record is in it. Whoever is pushed a marked helper has learnt everything, so
the chance of that is the total variation between what client i sees of two neighbouring data sets (docs/maths.md, 9).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom

from ..fdp.bounds import Array
from ..local import Job, Optimiser, UnnoisedSteps
from ..rules import FedAvg, Server, Unprotected
from ..server import Aggregator
from ..sync import Absent, Answer, Helpers, Sent, Synchronisation, Uploads, synchronise
from ..values import number, whole

LEAKING, WATCHING = 0, 1  # clients j and i


class Estimate(NamedTuple):
    """The share of runs in which something happened, with its standard error."""

    share: float
    standard_error: float


def promised(share: float, rounds: int) -> Array:
    """What `thm:alg_1` promises after each round: 1 − (1 − p²)^r. True of one round; with a third client, of no more."""
    return 1 - (1 - _share(share) ** 2) ** _each(rounds)


def transcript(share: float, rounds: int) -> Array:
    """The bound of docs/maths.md, 8, after each round: 1 − (1 − p)^r. True against everybody else together."""
    return 1 - (1 - _share(share)) ** _each(rounds)


def exact(clients: int, share: float, rounds: int) -> Array:
    """P(client i was pushed a marked helper) after each round: the state is how many of the m − 2 others have one.

    A sampled mark reaches everybody sampled, and none is ever lost: its owner brings it into every average that could
    replace its helper.
    """
    whole("clients", clients, 2, remedy="a leak needs somebody else")
    share, others = _share(share), clients - 2
    marked = np.arange(others + 1)
    hit = 1 - (1 - share) ** (marked + 1)  # client j or one of the marked is sampled
    spread = binom.pmf(marked[None, :] - marked[:, None], others - marked[:, None], share)
    unseen = np.diag(1 - hit) + (hit * (1 - share))[:, None] * spread  # to where a round leads that does not reach i
    state, reached = np.eye(others + 1)[0], []
    for _ in _each(rounds):
        reached.append(float(state @ hit) * share)
        state = state @ unseen
    return np.cumsum(reached)


def measured(clients: int, share: float, rounds: int, runs: int, seed: int) -> tuple[Estimate, ...]:
    """The share of runs of Algorithm 1 in which client i had been pushed a marked helper, after each round."""
    whole("clients", clients, 2, remedy="a leak needs somebody else")
    whole("rounds", rounds, 1)
    whole("runs", runs, 1)
    share = _share(share)
    rng = np.random.default_rng(seed)
    first = np.zeros(rounds, int)  # in how many runs client i learnt in which round
    for _ in range(runs):
        present = (rng.random((rounds, clients)) < share).tolist()
        learnt = learns(present)
        if learnt is not None:
            first[learnt] += 1
    return tuple(Estimate(p, math.sqrt(p * (1 - p) / runs)) for p in (np.cumsum(first) / runs).tolist())


def learns(present: Sequence[Sequence[bool]]) -> int | None:
    """One run of Algorithm 1 as it is printed: the round, from 0 on, in which client i is first pushed a marked helper.

    `present` says of each round and client whether it takes part."""
    engine = Marking(present)
    start = torch.zeros(1, dtype=torch.double)
    server_side = Aggregator(FedAvg(), [_job(name) for name in engine.names], start, delivery="push")
    for server, _ in synchronise(Synchronisation(rounds=len(present)), server_side, engine, Server(start)):
        if server_side.helpers(server)([engine.names[WATCHING]]).item() > 0:
            return server.round - 1
    return None


class Marking:
    """Clients whose model is one number, above 0 where it is marked. Client j marks what it trains, others pass it on."""

    def __init__(self, present: Sequence[Sequence[bool]]) -> None:
        self.present = present
        self.names = tuple(str(client) for client in range(len(present[0])))

    def train(self, round: int, helpers: Helpers) -> Uploads:
        """Local training from the helper. It sends 0 or 1, so no mark can become too small to be seen."""
        here = [name for name, there in zip(self.names, self.present[round], strict=True) if there]
        rows = (helpers(here) > 0).double() if here else torch.zeros(0, 1, dtype=torch.double)
        if self.names[LEAKING] in here:
            rows[here.index(self.names[LEAKING])] = 1.0
        answers: dict[str, Answer] = {name: Absent() for name in self.names}
        answers |= {name: Sent(row, 1) for name, row in zip(here, rows, strict=True)}
        return Uploads(answers, Unprotected(rows))


def _job(name: str) -> Job:
    """What the server knows of a client that protects nothing."""
    steps = UnnoisedSteps(records=1, batch="full", local_steps=1)
    return Job(client=name, plan=None, optimiser=Optimiser(), unnoised_steps=steps)


def _share(share: float) -> float:
    return number("share", share, 0, 1, ends="(]")


def _each(rounds: int) -> Array:
    return np.arange(1.0, whole("rounds", rounds, 1) + 1)
