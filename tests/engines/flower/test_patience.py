"""A question waits longer for its answer the longer both take to travel."""

from types import SimpleNamespace

from prifedsync.engines.flower import exchange
from prifedsync.engines.flower.exchange import Exchange, Patience, UnderWay

PATIENCE = Patience(whole=1e6, first=60.0, offline=90.0)


def waited(frame, monkeypatch):
    """The seconds of the first try."""
    found = []

    def sent(self, *words):
        found.append(words[-1])
        return SimpleNamespace(answer=b"", wrong="")

    monkeypatch.setattr(Exchange, "_sent", sent)
    made = Exchange(SimpleNamespace(submitted=1, push=None))
    made._there = {"a": 1}
    made._asked("a", frame, PATIENCE, UnderWay(0.0))
    return found[0]


def test_a_long_frame_is_given_time_to_travel(monkeypatch):
    assert waited(b"", monkeypatch) == 60.0
    assert waited(bytes(2_000_000), monkeypatch) == 60.0 + 2_000_000 / exchange.SLOWEST
