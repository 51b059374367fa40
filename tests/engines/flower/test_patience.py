"""A question is given the time that it and its answer take to travel."""

from types import SimpleNamespace

import pytest

from prifedsync.engines.flower.exchange import SLOWEST, Exchange, Patience

PATIENCE = Patience(whole=1e6, first=60.0, offline=90.0)


@pytest.mark.parametrize(("size", "longer"), [(0, 0.0), (SLOWEST // 2, 0.0), (4 * SLOWEST, 4.0)])
def test_a_long_question_waits_longer_until_it_is_sent_again(size, longer, monkeypatch):
    waits = []

    def send(self, asked, node, frame, seconds, kept):
        waits.append(seconds)
        asked.answer = b"an answer"

    monkeypatch.setattr(Exchange, "_send", send)
    exchange = Exchange(SimpleNamespace(submitted=1))
    exchange._there = {"a": 1}
    assert exchange.ask("a", bytes(int(size)), PATIENCE) == b"an answer"
    assert waits == [60.0 + longer]
