"""A client that comes late and one that leaves for good, in a real deployment.

It has three rounds:
    round 1   without hospital-c, whose network side is not there
    round 2   all three: hospital-c has joined, and all masks are agreed upon anew
    round 3   without hospital-b, which has left: a second attempt takes the sum of the others
"""

import pytest

from prifedsync.deploy import serving
from prifedsync.events import Note, RoundDone

from ..owner.sites import Forks
from .live import TapedClients, command, deployed, ledger_of, lines_of, logs_shown, status_of, until

LATE = "hospital-c"
LEAVES = "hospital-b"
STAYS = "hospital-a"
ROUNDS = 3
WAITING = {"begin": 0.0, "question": 10.0, "round": 90.0, "offline": 3.0}


class Late(TapedClients):
    """Clients of whom one is not there at the beginning."""

    has_begun = False

    def start_site(self, name):
        if name != LATE or self.has_begun:
            super().start_site(name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The project, the record, and what was said before the first round."""
    notes = []
    folder = tmp_path_factory.mktemp("faults")
    with deployed(folder, f"rounds={ROUNDS}", waiting=WAITING) as copy, logs_shown(copy):
        with Forks() as forks, Late(copy, forks) as clients, pytest.MonkeyPatch.context() as patch:
            patch.setattr(serving, "_wait_for_clients", _wait_for_the_others)
            record = serving.serve(copy.server.folder, lambda event: _watch(event, copy, clients, notes))
        yield copy, record, notes


def _wait_for_the_others(exchange, *given, wait=serving._wait_for_clients):
    """As long as they need on this machine; then the time that the server waits is over."""
    until(lambda: {STAYS, LEAVES} <= exchange.online, "two clients come")
    wait(exchange, *given)


def _watch(event, copy, clients, notes):
    if isinstance(event, Note):
        notes.append(event.text)
    if isinstance(event, RoundDone) and event.round == 1:
        clients.has_begun = True
        clients.start_site(LATE)
        until(lambda: _node(copy, LATE) == "online", "it joins")
    if isinstance(event, RoundDone) and event.round == 2:
        clients.sites[LEAVES].end()
        clients.owners[LEAVES].end()
        until(lambda: _node(copy, LEAVES) == "offline", "it leaves")


def _node(copy, client):
    return next(one["node"] for one in status_of(copy)["clients"] if one["name"] == client)


def test_a_run_begins_without_who_is_late(run):
    _, _, notes = run
    assert f"begun without {LATE}" in notes


def test_the_log_says_who_was_lost(run):
    copy, _, _ = run
    lost = [set(line["answers"].get("lost", ())) for line in lines_of(copy)]
    assert lost == [{LATE}, set(), {LEAVES}]
    assert [line["participants"] for line in lines_of(copy)] == [2, 3, 2]
    assert [line.get("attempts", 1) for line in lines_of(copy)] == [1, 1, 2]


def test_the_record_says_who_was_lost_and_when(run):
    _, record, _ = run
    said = record.deployment
    assert [(event["round"], event["client"], event["answer"]) for event in said["events"]] == [
        (1, LATE, "lost"),
        (3, LEAVES, "lost"),
    ]
    assert all("SuperNode is not there" in event["reason"] for event in said["events"])
    assert {name: counts["sent"] for name, counts in said["answers"].items()} == {STAYS: 3, LEAVES: 2, LATE: 2}


def test_the_ledgers_have_what_each_answered(run):
    copy, _, _ = run
    for name, answered in {STAYS: (3, 1), LEAVES: (2, 0), LATE: (2, 1)}.items():
        with ledger_of(copy, name) as ledger:
            (charged,) = ledger.runs()
            assert (charged.asked, charged.spare) == answered
        command("ledger", "verify", copy.client(name).policy)
