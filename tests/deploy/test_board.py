"""The status that a server writes: it follows the run, and outlives a disk that is full."""

import time
from contextlib import nullcontext

import pytest

from prifedsync.deploy import board as boards
from prifedsync.deploy.board import Board
from prifedsync.deploy.status import read
from prifedsync.local.answers import Absent, Lost, Refused, Sent
from prifedsync.values import BadValue

from ..owner.sites import run_document, until

NAMES = ("a", "b", "c", "d")


class There:
    online = frozenset({"a", "c", "d"})
    registered = frozenset({"a", "b", "c"})

    def __init__(self):
        self.waited_for = {}


class Waits:
    since = 0.0
    wrong = "its SuperNode is not there"


@pytest.fixture
def board(tmp_path):
    made = Board(tmp_path / "status.json", run_document(rounds=5, clients=NAMES), 60.0)
    made.there = There()
    return made


def seen(board):
    board._write()
    return read(board._path)


def test_it_follows_a_round(board):
    assert seen(board).phase == "waiting for clients"
    board.round_begins(0, NAMES)
    board.there.waited_for = {"b": Waits()}
    asked = seen(board)
    assert (asked.phase, asked.rounds) == ("training", 5)
    late = asked.clients[1]
    assert (late.answer, late.reason, late.late, late.node) == ("asked", Waits.wrong, True, "offline")
    assert [client.node for client in asked.clients] == ["online", "offline", "online", "online"]
    board.there.waited_for = {}
    answers = {"a": Sent(None, 1), "b": Lost("gone"), "c": Absent(), "d": Refused("no budget")}
    board.round_ends(answers, {"a": {"accuracy": 0.5}})
    after = seen(board)
    assert [client.answer for client in after.clients] == ["sent", "lost", "absent", "refused"]
    assert [client.reason for client in after.clients] == ["", "gone", "", "no budget"]
    assert [client.answered for client in after.clients] == [1, 0, 1, 0]
    assert after.clients[0].shown == {"accuracy": 0.5}
    assert after.clients[1].shown is None


def test_it_says_why_somebody_is_not_asked_while_a_round_waits(board):
    """A masked round may wait an hour for enough clients, and nothing else says for whom."""
    board.round_begins(1, NAMES)
    board.missed = lambda: {"b": "was not reached: it is busy"}
    assert [client.reason for client in seen(board).clients] == ["", "was not reached: it is busy", "", ""]


def test_who_is_nowhere_is_not_registered(board):
    board.there = None
    assert {client.node for client in seen(board).clients} == {"not registered"}


@pytest.mark.parametrize(
    ("raised", "phase", "said"),
    [
        (None, "finished", ""),
        (KeyboardInterrupt(), "ended", ""),
        (ValueError("no room"), "stopped by an error", "ValueError: no room"),
        (BadValue("port", 1, "is taken"), "stopped by an error", "port = 1 is taken"),
    ],
)
def test_it_says_how_the_run_ended(board, raised, phase, said):
    with pytest.raises(type(raised)) if raised else nullcontext(), board:
        if raised:
            raise raised
    assert read(board._path).phase == phase
    assert read(board._path).error == said


def test_a_full_disk_ends_no_status(board, monkeypatch):
    monkeypatch.setattr(boards, "EVERY", 0.02)
    real = boards.write
    tries = []

    def write(path, status):
        tries.append(status)
        if 1 < len(tries) < 5:
            raise OSError("no space left on device")
        real(path, status)

    monkeypatch.setattr(boards, "write", write)
    with board:
        until(lambda: len(tries) > 7)
        assert time.time() - read(board._path).changed < 5.0
