"""Secret draws are bound to the list of a masked sum: the same noise never meets another list."""

from __future__ import annotations

import pytest

from prifedsync.config import load
from prifedsync.local import SystemDraws
from prifedsync.run import prepare
from prifedsync.run.loop import session, synchronised

MASKED = (
    "data.clients=4", "rounds=2", "privacy.masks=true", "privacy.randomness=system", "privacy.attempts=2",
    "privacy.least_clients=2", "compare=[]", "evaluate_every=0",
)  # fmt: skip


class Chosen:
    """A server that says of these clients that their messages never arrived, in the first attempt at a round."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def lost(self, client: str, round: int, attempt: int = 0) -> bool:
        return attempt == 0 and client in self.names


def _chains(absent: set[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each client's draws are bound to after one round, under one key."""
    secret = SystemDraws(bytes(range(32)))
    monkeypatch.setattr("prifedsync.run.loop.SystemDraws", lambda *ignored: secret)
    run = session(prepare(load(None, MASKED)), None)
    run.engine.outages = Chosen(absent)  # type: ignore[attr-defined]
    next(synchronised(run.prepared, run.aggregator, run.engine, run.server))
    return {client.name: client.chain for client in run.engine.clients}  # type: ignore[attr-defined]


def test_draws_of_an_attempt_depend_on_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(_chains(set(), monkeypatch))
    without_first = _chains({names[0]}, monkeypatch)
    without_second = _chains({names[1]}, monkeypatch)
    again = _chains({names[0]}, monkeypatch)
    assert without_first == again
    assert without_first[names[3]] != without_second[names[3]]
