"""The server chooses who takes part in a round, in the place of the clients' coins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from ..local.job import Job
from ..local.sums import Sums
from ..scores import Measurement
from ..sync import Account, Engine, Evaluation, Helpers, Model, Summed, Uploads
from ..values import BadValue, number

FIELD = "participation.share"


class Planned(Engine, Protocol):
    """An engine that shows what its clients are asked to do."""

    @property
    def jobs(self) -> tuple[Job, ...]: ...

    @property
    def sums(self) -> Sums | None: ...


class Chosen:
    """An engine of which only a share of the clients is asked in each round (`sync.Engine`).

    Who is asked follows from a public seed and the round, so that a resumed run asks the same clients. A guarantee for an
    honest coin is void where somebody else chooses. So all plans must have participation 1: they count every round.
    """

    def __init__(self, engine: Planned, share: float, seed: int) -> None:
        self.engine = engine
        self.names = engine.names
        self.share = number(FIELD, share, 0, 1, ends="(]")
        self.seed = seed
        for job in engine.jobs:
            _check_counted(job)
        _check_sums(engine.sums, self.share, self._count(self.names))

    def asked(self, round: int, names: Sequence[str]) -> tuple[str, ...]:
        """Who of these is asked in a round, in their order."""
        first = sorted(names, key=lambda name: _place(self.seed, round, name))
        chosen = set(first[: self._count(names)])
        return tuple(name for name in names if name in chosen)

    def _count(self, names: Sequence[str]) -> int:
        return max(1, round(self.share * len(names)))

    # ------------------------------------------------------------------ the protocol of sync.py

    def train(self, round: int, helpers: Helpers) -> Uploads | Summed:
        """Those who are chosen answer; nobody else is asked."""
        return self.engine.train(round, Helpers(self.asked(round, helpers.names), helpers.make))

    def accounts(self) -> Mapping[str, Account]:
        return self.engine.accounts()

    def models(self, released: Tensor) -> Mapping[str, Model]:
        return self.engine.models(released)

    def evaluate(self, released: Tensor | None, own: Sequence[str] = ()) -> Evaluation | None:
        return self.engine.evaluate(released, own)

    def measure(self, released: Tensor | None, own: bool) -> Mapping[str, tuple[Measurement, ...]] | None:
        return self.engine.measure(released, own)

    def save(self) -> dict[str, Any]:
        return {"share": self.share, "seed": self.seed, "engine": self.engine.save()}

    def saved(self) -> None:
        self.engine.saved()

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with the same choice; another one is refused."""
        for name in ("share", "seed"):
            own = getattr(self, name)
            if state.get(name) != own:
                rule = f"is not that of the run, {state.get(name)}: other clients would be asked"
                raise BadValue(f"participation {name}", own, rule, "set it as it was when the run began")
        self.engine.load(state["engine"])


def _place(seed: int, round: int, name: str) -> bytes:
    """A client's place in the order of a round: the first ones are asked. Each order is as likely as any other."""
    return hashlib.blake2b(json.dumps([seed, round, name]).encode(), digest_size=16).digest()


def _check_counted(job: Job) -> None:
    if job.participation != 1:
        rule = f"must be 1 for client {job.client} where the server chooses: a guarantee for its own coin would not hold"
        raise BadValue("participation", job.participation, rule, 'set participation = 1, or chosen_by = "clients"')


def _check_sums(sums: Sums | None, share: float, count: int) -> None:
    """A sum of too few is not used, so all rounds of such a run would be in vain."""
    if sums is not None and count < sums.least:
        rule = f"asks {count} clients in a round, and {sums.least} must be in a sum"
        raise BadValue(FIELD, share, rule, "set a larger share, or a smaller privacy.least_clients")
