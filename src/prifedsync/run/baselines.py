"""What is trained beside a run for comparison: without privacy, and each client alone with the noise of its own plan.

Nothing of it is released but its scores, which have no noise and are covered by no guarantee, like all scores.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..config import Config, joined
from ..engines.scoring import with_pooled
from ..events import RoundDone, Watch
from ..local import Draws, SeededDraws, SystemDraws
from ..rules import Server
from ..scores import Measurement
from ..settings import unchosen
from ..sync import Aggregation, Engine, Helpers, Summed, Synchronisation, Uploads
from .loop import synchronised
from .prepare import Prepared
from .recording import check_counts

ALONE_PRIVATE = "alone-private"
NOT_PRIVATE = {  # nothing is noised, so nothing is masked or repeated, and no upload is lost
    "privacy.mechanism": "none",
    "privacy.masks": False,
    "privacy.attempts": 0,
    "privacy.least_clients": None,
    "lost": 0.0,
}


def compared(prepared: Prepared) -> tuple[str, ...]:
    """What the config compares; where the run adds no noise, a client alone has none either."""
    return tuple(kind for kind in prepared.config.compare if kind != ALONE_PRIVATE or prepared.plans)


def comparison(prepared: Prepared, kind: str, watch: Watch) -> tuple[Measurement, ...]:
    """The scores of one baseline, one measurement for each metric."""
    if kind == ALONE_PRIVATE:
        return _alone_private(prepared, watch)
    config = prepared.config.changed(**NOT_PRIVATE, **unchosen(prepared.config))
    if kind == "alone":
        config = config.with_rule("alone")
    elif not prepared.rule.uploads:
        config = config.with_rule("fedavg")
    bare = prepared.under(config)
    config = bare.config
    engine = bare.cohort(SeededDraws(config.seed))
    server = _trained(bare, bare.aggregator(), engine, kind, watch)
    found = engine.measure(None if kind == "alone" else server.released, own=kind == "alone")
    assert found is not None  # these clients are in this process
    return found["personal" if kind == "alone" else "released"]


def _trained(prepared: Prepared, aggregation: Aggregation, engine: Engine, kind: str, watch: Watch) -> Server:
    """All rounds of a baseline; returns the server after them."""
    begun = time.perf_counter()
    rounds = prepared.config.rounds
    start = Server(prepared.start)
    server = start
    for server, uploads in synchronised(prepared, aggregation, engine, start):
        pace = (time.perf_counter() - begun) / server.round
        watch(RoundDone(kind, server.round, rounds, len(uploads.trained), None, None, pace, None, True))
    return server


# ---------------------------------------------------------------------- each client alone, with the noise of its plan


def _alone_private(prepared: Prepared, watch: Watch) -> tuple[Measurement, ...]:
    """Each client as if it were the only one of the same run: the very same plan, and a server of its own.

    Its model is the mean of the last ones, as it is for the released model: both have the same post-processing.
    """
    alone = prepared.under(_as_counted(prepared))
    if alone.plans != prepared.plans:
        raise RuntimeError("clients alone would have other plans than in this run; they cannot be compared")
    engine = alone.cohort(draws_alone(prepared), alone=True)
    servers = Servers(engine.names, alone.start, alone.synchronisation)
    _trained(alone, servers, engine, ALONE_PRIVATE, watch)
    check_counts(alone, engine)
    scorer = alone.scorer
    models = servers.released
    pooled = scorer.over_models(scorer.pooled(models))
    return with_pooled(scorer.measure_own(lambda client: models[client]), pooled)


def _as_counted(prepared: Prepared) -> Config:
    """The config under FedAvg, with as many steps as the run's rule takes noisy gradients."""
    config = prepared.config.with_rule("fedavg")
    steps = {"local.local_steps": config.local.local_steps}
    own = {f"{joined('clients', name)}.local_steps": each.local_steps for name, each in config.clients.items()}
    steps |= {name: value for name, value in own.items() if value is not None}
    return config.changed(**{name: prepared.rule.noisy_gradients(value) for name, value in steps.items()})


def draws_alone(prepared: Prepared) -> Draws:
    """Draws that share nothing with the run's: the same noise under two gradients would cancel in their difference.

    A run with secret draws gets a new secret, which is kept nowhere. A simulation gets a seed of its own.
    """
    config = prepared.config
    if config.privacy.randomness == "system":
        return SystemDraws()
    digest = hashlib.blake2b(f"{ALONE_PRIVATE} {config.seed}".encode(), digest_size=8).digest()
    return SeededDraws(int.from_bytes(digest, "little") >> 1)  # as large as a seed of the config may be


@dataclass
class Servers:
    """A server for each client, which sees that client's uploads and no other's."""

    names: Sequence[str]
    start: Tensor
    plan: Synchronisation
    weights: Tensor = field(init=False)  # [C, P]
    total: Tensor | None = None  # of the last models, in double precision
    averaged: int = 0

    def __post_init__(self) -> None:
        self.weights = self.start.repeat(len(self.names), 1)
        self.place = {name: place for place, name in enumerate(self.names)}

    @property
    def released(self) -> Tensor:
        """The model of each client [C, P]."""
        return self.weights if self.total is None else (self.total / self.averaged).to(self.weights.dtype)

    def helpers(self, server: Server) -> Helpers:
        return Helpers(tuple(self.names), lambda names: self.weights[self._rows(names)])

    def merge(self, server: Server, uploads: Uploads | Summed, rate: float) -> Server:
        assert isinstance(uploads, Uploads)
        if uploads.senders:
            rows = self._rows(uploads.senders)
            moved = (1 - rate) * self.weights[rows].double() + rate * uploads.rows.value.double()
            self.weights[rows] = moved.to(self.weights.dtype)
        if self.plan.averages(server.round):
            self.total = self.weights.double() if self.total is None else self.total + self.weights
            self.averaged += 1
        return server

    def _rows(self, names: Sequence[str]) -> Tensor:
        return torch.tensor([self.place[name] for name in names], device=self.weights.device)
