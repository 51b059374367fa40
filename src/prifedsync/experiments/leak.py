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
from torch import Tensor

from ..fdp.bounds import Array
from ..rules import FedAvg, Numbers, Rule, Server, Unprotected
from ..sync import Coin, Sent, Synchronisation, Uploads, synchronise
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
    plan = Synchronisation(clients=clients, rounds=rounds, participation=share, delivery="push")
    whole("runs", runs, 1)
    rng = np.random.default_rng(seed)
    first = np.zeros(rounds, int)  # in how many runs client i learnt in which round
    for _ in range(runs):
        coins = rng.random((rounds, clients)).tolist()
        learnt = learns(plan, lambda client, round, coins=coins: coins[round][client])
        if learnt is not None:
            first[learnt] += 1
    return tuple(Estimate(p, math.sqrt(p * (1 - p) / runs)) for p in (np.cumsum(first) / runs).tolist())


def learns(plan: Synchronisation, coin: Coin) -> int | None:
    """One run of Algorithm 1: the round, from 0 on, in which client i is first pushed a marked helper."""
    rule = FedAvg()
    engine = Marking(plan.clients, rule)
    for server, _ in synchronise(plan, rule, engine, coin, Server(torch.zeros(1, dtype=torch.double))):
        if engine.helpers[WATCHING] > 0:
            return server.round - 1
    return None


class Marking:
    """Clients whose model is one number, above 0 where it is marked. Client j marks what it trains, others pass it on."""

    def __init__(self, clients: int, rule: Rule) -> None:
        whole("clients", clients, 2, remedy="a leak needs somebody else")
        self.rule, self.numbers = rule, Numbers(*torch.ones(3, 1, 1, dtype=torch.double))
        self.own, self.helpers = torch.zeros(2, clients, 1, dtype=torch.double)

    def train(self, round: int, chosen: Sequence[int], weights: Tensor | None) -> Uploads:
        """Local training from the helper. It sends 0 or 1, so no mark can become too small to be seen."""
        if weights is not None:
            self.push(chosen, weights)
        at = torch.tensor(chosen)
        rows = (self.rule.start(self.own[at], self.helpers[at]) > 0).double()
        rows[at == LEAKING] = 1.0
        self.own[at] = rows
        return Uploads({i: Sent(row, 1) for i, row in zip(chosen, rows, strict=True)}, Unprotected(rows))

    def push(self, chosen: Sequence[int], weights: Tensor) -> None:
        at = torch.tensor(chosen)
        self.helpers[at] = self.rule.helper(weights, self.own[at], self.numbers)


def _share(share: float) -> float:
    return number("share", share, 0, 1, ends="(]")


def _each(rounds: int) -> Array:
    return np.arange(1.0, whole("rounds", rounds, 1) + 1)
