"""What one client learns about another client's record over rounds: by `thm:alg_1`, exactly, and in simulated runs.

Client j protects nothing (f_j ≡ 0), helpers are the global model itself, and η = 1. A model is marked once client j's
record has entered it, and training from a marked model gives a marked model. A client that is sent a marked helper has
learnt everything. So the probability of that is the total variation between client i's views of two neighbouring data sets
(docs/maths.md, 9).
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

LEAKING = 0  # client j
WATCHING = 1  # client i
TWO_CLIENTS = "add a second client: a leak needs a client that learns"


class Estimate(NamedTuple):
    """The share of runs in which client i had learnt the record, with its standard error."""

    share: float
    standard_error: float


def promised(participation: float, rounds: int) -> Array:
    """The leak that `thm:alg_1` states after each round: 1 − (1 − p²)^r. With a third client it holds for one round."""
    return 1 - (1 - _probability(participation) ** 2) ** _each(rounds)


def transcript(participation: float, rounds: int) -> Array:
    """The bound of docs/maths.md, 8, after each round: 1 − (1 − p)^r. It holds against all others together."""
    return 1 - (1 - _probability(participation)) ** _each(rounds)


def exact(clients: int, participation: float, rounds: int) -> Array:
    """P(client i was sent a marked helper) after each round. The state is how many of the m − 2 others have one.

    If a client with a marked helper takes part, all clients that take part get a marked helper. No mark is ever lost: its
    owner brings it into every average that could replace its helper.
    """
    whole("clients", clients, 2, remedy=TWO_CLIENTS)
    p = _probability(participation)
    others = clients - 2
    marked = np.arange(others + 1)
    hit = 1 - (1 - p) ** (marked + 1)  # client j, or another client with a mark, takes part
    spread = binom.pmf(marked[None, :] - marked[:, None], others - marked[:, None], p)
    # transitions in a round that does not reach client i
    unseen = np.diag(1 - hit) + (hit * (1 - p))[:, None] * spread
    state = np.eye(others + 1)[0]
    reached = []
    for _ in _each(rounds):
        reached.append(float(state @ hit) * p)
        state = state @ unseen
    return np.cumsum(reached)


def measured(clients: int, participation: float, rounds: int, runs: int, seed: int) -> tuple[Estimate, ...]:
    """The share of simulated runs of Algorithm 1 in which client i had been sent a marked helper, after each round."""
    whole("clients", clients, 2, remedy=TWO_CLIENTS)
    whole("rounds", rounds, 1)
    whole("runs", runs, 1)
    p = _probability(participation)
    rng = np.random.default_rng(seed)
    first = np.zeros(rounds, int)  # for each round, the number of runs in which client i learnt the record then
    for _ in range(runs):
        present = (rng.random((rounds, clients)) < p).tolist()
        learnt = learns(present)
        if learnt is not None:
            first[learnt] += 1
    shares = (np.cumsum(first) / runs).tolist()
    return tuple(Estimate(share, math.sqrt(share * (1 - share) / runs)) for share in shares)


def learns(present: Sequence[Sequence[bool]]) -> int | None:
    """One run of Algorithm 1 as it is printed: the round, from 0, in which client i is first sent a marked helper.

    `present` says for each round and client whether the client takes part.
    """
    engine = Marking(present)
    start = torch.zeros(1, dtype=torch.double)
    server_side = Aggregator(FedAvg(), [_job(name) for name in engine.names], start, delivery="push")
    settings = Synchronisation(rounds=len(present))
    for server, _ in synchronise(settings, server_side, engine, Server(start)):
        if server_side.helpers(server)([engine.names[WATCHING]]).item() > 0:
            return server.round - 1
    return None


class Marking:
    """Clients whose model is one number, above 0 if it is marked. Client j marks its model, the others keep a mark."""

    def __init__(self, present: Sequence[Sequence[bool]]) -> None:
        self.present = present
        self.names = tuple(str(client) for client in range(len(present[0])))

    def train(self, round: int, helpers: Helpers) -> Uploads:
        """Local training from the helper. Each client sends 0 or 1, so that no mark becomes too small to be seen."""
        here = [name for name, there in zip(self.names, self.present[round], strict=True) if there]
        rows = (helpers(here) > 0).double() if here else torch.zeros(0, 1, dtype=torch.double)
        if self.names[LEAKING] in here:
            rows[here.index(self.names[LEAKING])] = 1.0
        answers: dict[str, Answer] = {name: Absent() for name in self.names}
        answers |= {name: Sent(row, 1) for name, row in zip(here, rows, strict=True)}
        return Uploads(answers, Unprotected(rows))


def _job(name: str) -> Job:
    """The job of a client that protects nothing."""
    steps = UnnoisedSteps(records=1, batch="full", local_steps=1)
    return Job(client=name, plan=None, optimiser=Optimiser(), unnoised_steps=steps)


def _probability(participation: float) -> float:
    return number("participation", participation, 0, 1, ends="(]")


def _each(rounds: int) -> Array:
    return np.arange(1.0, whole("rounds", rounds, 1) + 1)
