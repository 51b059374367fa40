"""Secret draws are bound to the list of a sum, masked or not: the same noise never meets another list."""

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


BARE = (
    "data.clients=4", "rounds=2", "local.batch=full", "local.local_steps=1", "local.optimiser=sgd", "compare=[]",
    "privacy.randomness=system", "evaluate_every=0",
)  # fmt: skip


def _bare_chains(absent: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same where nothing is masked, and a server does not ask one of the clients."""
    secret = SystemDraws(bytes(range(32)))
    monkeypatch.setattr("prifedsync.run.loop.SystemDraws", lambda *ignored: secret)
    run = session(prepare(load(None, BARE)), None)
    engine = run.engine
    joined = engine._joined  # type: ignore[attr-defined]
    engine._joined = lambda round, names: joined(round, [name for name in names if name != absent])  # type: ignore[attr-defined]
    assert engine.sums is not None  # type: ignore[attr-defined]
    next(synchronised(run.prepared, run.aggregator, engine, run.server))
    return {client.name: client.chain for client in engine.clients}  # type: ignore[attr-defined]


def test_draws_of_a_bare_sum_depend_on_its_list_too(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = _bare_chains("", monkeypatch)
    first, second, _, last = everybody
    without_first = _bare_chains(first, monkeypatch)
    assert _bare_chains(first, monkeypatch) == without_first
    chains = [each[last] for each in (everybody, without_first, _bare_chains(second, monkeypatch))]
    assert len(set(chains)) == 3


def test_draws_of_an_attempt_depend_on_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(_chains(set(), monkeypatch))
    without_first = _chains({names[0]}, monkeypatch)
    without_second = _chains({names[1]}, monkeypatch)
    again = _chains({names[0]}, monkeypatch)
    assert without_first == again
    assert without_first[names[3]] != without_second[names[3]]
