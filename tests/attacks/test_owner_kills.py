"""A daemon that is killed: it never gives out what is not charged, and it goes on.

    at every call   the daemon is ended before the n-th call that changes a file of ledger or anchor (write, ftruncate,
                    rename, fsync, unlink), for each n in turn
    at any moment   SIGKILL comes after a random time, while one run after another is asked for, in one ledger

After each kill the daemon starts again, the slot that was asked last is asked again, and the run goes on. `make test` takes
30 kills, `make test-slow` all calls and 1,000 in all (PRIFEDSYNC_KILLS).
"""

import os
import random
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prifedsync.asking.connection import NoAnswer
from prifedsync.asking.questions import Accepted, Declined, Reply
from prifedsync.asking.refusals import Refusal

from ..owner import sites
from ..owner.sites import enrol, new_site, run_document, slot

FEW = 30
KILLS = int(os.environ.get("PRIFEDSYNC_KILLS", FEW))
LEAST_CALLS = 90  # that a life of the daemon makes
AT_CALLS = 18 if KILLS == FEW else None  # None: all there are
AT_RANDOM = 12 if KILLS == FEW else max(FEW, KILLS - LEAST_CALLS)
ROUNDS = 3  # that are asked in each run
COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None:
        assert KILLS == FEW, "make test-slow needs a C compiler, to end a process at a given call"
        pytest.skip("there is no C compiler to make the library that ends a process at a given call")
    built = tmp_path_factory.mktemp("library") / "kill_before.so"
    source = Path(sites.__file__).with_name("kill_before.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], check=True)
    return built


@dataclass
class Asker:
    """Asks for the rounds of a run, and remembers all that left."""

    site: sites.Site
    document: object
    received: dict = field(default_factory=dict)  # slot → the body of its reply
    rounds: int = ROUNDS

    def go_on(self):
        """Enrol and ask for all rounds, those that were answered too. True if the daemon lived until the end."""
        try:
            accepted = self.site.ask(enrol(self.document))
            assert isinstance(accepted, Accepted), accepted
            for round in range(self.rounds):
                self.ask(round)
        except NoAnswer:
            return False
        return True

    def ask(self, round):
        reply = self.site.ask(slot(self.document, round))
        assert isinstance(reply, Reply), reply
        before = self.received.setdefault(round, reply.body)
        assert reply.body == before, "one slot has two replies"

    def check_other_helper(self):
        """A slot that was answered has no answer to another question."""
        for round in self.received:
            other = self.site.ask(slot(self.document, round, value=-1.0))
            assert other == Declined(Refusal.SLOT), other


def check_ledger(site, askers):
    """The ledger is whole, and has an entry with the same bytes for all that left."""
    ledger = site.ledger()
    try:
        for asker in askers:
            run = ledger.run(asker.document.run)
            assert not asker.received or run.asked >= len(asker.received)
            for round, body in asker.received.items():
                stored = ledger.stored(asker.document.run, round, 0)
                assert stored is not None, f"round {round} left without an entry"
                assert stored.body == body
                assert stored.question == slot(asker.document, round).digest
        totals = ledger.totals()
        assert totals.spent + totals.reserved <= totals.limit
    finally:
        ledger.close_file()


def spent(site):
    ledger = site.ledger()
    try:
        return ledger.totals().spent
    finally:
        ledger.close_file()


def calls_of(forks, site, document):
    """How many calls a life of the daemon makes that nothing disturbs: it starts, is asked, and ends."""
    daemon = forks.start(site, kill_before=10**9, folder=str(site.folder))
    assert Asker(site, document).go_on()
    assert daemon.end() == signal.SIGTERM
    return forks.count()


def test_killed_before_every_write_rename_and_sync(library, tmp_path):
    """End the daemon before each call in turn that changes its ledger or anchor."""
    document = run_document()
    template = new_site(tmp_path / "template")
    with sites.Forks(library) as forks:
        undisturbed = template.copied(tmp_path / "undisturbed")
        calls = calls_of(forks, undisturbed, document)
        whole = spent(undisturbed)
        assert calls >= LEAST_CALLS
        wanted = range(1, calls + 1)
        if AT_CALLS is not None:
            wanted = [1 + step * (calls - 1) // (AT_CALLS - 1) for step in range(AT_CALLS)]
        for number in wanted:
            site = template.copied(tmp_path / str(number))
            killed_once(forks, site, Asker(site, document), number)
            assert spent(site) == pytest.approx(whole, rel=1e-12), "a kill costs nothing, and saves nothing"
            shutil.rmtree(site.folder)
        print(f"{len(wanted)} kills before one of {calls} calls")


def killed_once(forks, site, asker, number):
    daemon = forks.start(site, must=False, kill_before=number, folder=str(site.folder))
    if daemon.ready and asker.go_on():
        os.kill(daemon.pid, signal.SIGTERM)  # the call comes when the daemon ends, or a life has a call less than another
    status = daemon.wait()
    assert status in (-signal.SIGKILL, signal.SIGTERM), status
    check_ledger(site, [asker])
    daemon = forks.start(site)
    assert asker.go_on(), "it does not go on"
    asker.check_other_helper()
    assert daemon.end() == signal.SIGTERM
    check_ledger(site, [asker])


def test_killed_at_any_moment(tmp_path):
    """Kill the daemon at random moments of one run after another, all in one ledger."""
    count = AT_RANDOM
    draw = random.Random(18)
    site = new_site(tmp_path / "site", mu=900.0)
    askers = []
    with sites.Forks() as forks:
        daemon = forks.start(site)
        for number in range(1, count + 1):
            asker = Asker(site, run_document(number, rounds=ROUNDS))
            askers.append(asker)
            moment = threading.Timer(draw.uniform(0, 0.1), os.kill, (daemon.pid, signal.SIGKILL))
            moment.start()
            while asker.go_on():
                pass  # stored replies are asked for again until the moment comes
            moment.join()
            assert daemon.wait() == -signal.SIGKILL
            check_ledger(site, askers[-2:])
            daemon = forks.start(site)
            assert asker.go_on(), "it does not go on"
            asker.check_other_helper()
        assert daemon.end() == signal.SIGTERM
    check_ledger(site, askers)
    ledger = site.ledger()
    assert [run.asked for run in ledger.runs()] == [ROUNDS] * count
    ledger.close_file()
