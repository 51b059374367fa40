"""The daemon: how it starts, ends, reads its policy again, when its answers leave, and what it takes from a restart."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from prifedsync.asking.frames import answer_frame
from prifedsync.asking.questions import Accepted, Declined, Enrol, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.asking.vectors import read_vector
from prifedsync.owner import daemon
from prifedsync.owner.desk import MOST_IN_MEMORY, Desk
from prifedsync.owner.log import OwnerLog
from prifedsync.owner.records import records_of
from prifedsync.owner.turns import leaving

from . import sites
from .sites import FEATURES, PARAMETERS, enrol, new_site, run_document, slot, until

MOST_IDLE = 600e6  # bytes


@pytest.fixture(scope="module")
def forks():
    with sites.Forks() as found:
        yield found


def serve(site, *options):
    environment = {**os.environ, "PYTHONPATH": str(sites.ROOT / "src")}
    command = [sys.executable, "-m", "prifedsync.cli", "owner", "serve", str(site.policy_path), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def refused(site):
    with serve(site) as process:
        try:
            said, error = process.communicate(timeout=60)
        finally:
            process.kill()  # if it serves instead
    assert process.returncode == 2, error
    assert said == ""
    assert error.count("\n") == 1
    return error


# ---------------------------------------------------------------------- starting and ending


def test_the_command_says_one_line_answers_and_ends(tmp_path):
    site = new_site(tmp_path / "site")
    document = run_document()
    with serve(site) as process:
        assert process.stdout.readline() == f"a listens on {site.socket_path}\n"
        memory = sites.Daemon(None, process.pid, True).memory
        assert memory() < MOST_IDLE
        assert isinstance(site.ask(enrol(document)), Accepted)
        assert isinstance(site.ask(slot(document, 0)), Reply)
        assert memory() < MOST_IDLE
        assert site.socket_path.stat().st_mode & 0o777 == 0o660
        process.terminate()
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
    assert not site.socket_path.exists()
    with serve(site, "--quiet") as process:
        until(site.socket_path.exists, 30)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def test_a_signal_that_comes_as_soon_as_there_is_a_socket_ends_it(tmp_path, monkeypatch):
    """Whoever started it in the background would wait for ever: Ctrl-C is ignored there until the daemon hears it."""
    listening = daemon.listening

    @contextmanager
    def signalled(path):
        with listening(path) as listener:
            signal.raise_signal(signal.SIGTERM)
            yield listener

    def unheard(number, frame):
        raise AssertionError("the daemon did not hear it")

    before = signal.signal(signal.SIGTERM, unheard)
    mask = os.umask(0o077)
    monkeypatch.setattr(daemon, "listening", signalled)
    try:
        assert daemon.serve(new_site(tmp_path / "site").policy_path, lambda policy: None) == signal.SIGTERM
    finally:
        os.umask(mask)
        signal.signal(signal.SIGTERM, before)


def test_what_it_refuses_to_start_with(tmp_path):
    site = new_site(tmp_path / "site")
    site.policy_path.chmod(0o644)
    assert "chmod 600" in refused(site)
    site.policy_path.chmod(0o600)
    site.ledger_path.rename(tmp_path / "kept")
    assert "ledger new" in refused(site)
    (tmp_path / "kept").rename(site.ledger_path)
    with (site.folder / "records.csv").open("a") as file:
        file.write("0.1,0.2,0.3,1\n")
    assert "source.records = 40" in refused(site)


def test_files_whose_times_others_may_see_are_refused(tmp_path):
    """The time of the last commit and the size of the log tell when a training was ready, and what failed."""
    site = new_site(tmp_path / "site", users=["61002"])
    sites.open_way(site.ledger_path)
    for name in ("book", "anchor"):
        (site.folder / name).chmod(0o755)
    assert "files.ledger" in refused(site)
    (site.folder / "book").chmod(0o700)
    said = refused(site)
    assert "files.anchor" in said
    assert f"chmod 700 {site.folder / 'anchor'}" in said
    (site.folder / "anchor").chmod(0o700)
    with serve(site, "--quiet") as process:
        try:
            until(site.socket_path.exists, 30)
        finally:
            process.send_signal(signal.SIGTERM)


def test_one_daemon_a_ledger(forks, tmp_path):
    """Also if the other one would listen elsewhere."""
    site = new_site(tmp_path / "site")
    daemon = forks.start(site)
    elsewhere = sites.Site(site.folder)
    elsewhere.policy_path = site.folder / "elsewhere.toml"
    elsewhere.policy_path.write_text(site.policy_path.read_text().replace("owner.sock", "other.sock"))
    elsewhere.policy_path.chmod(0o600)
    second = forks.start(elsewhere, must=False)
    assert not second.ready
    assert second.wait() == 1
    assert isinstance(site.ask(enrol(run_document())), Accepted)
    daemon.end()


def test_a_socket_that_was_left_behind_is_replaced(forks, tmp_path):
    site = new_site(tmp_path / "site")
    daemon = forks.start(site)
    assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
    assert site.socket_path.exists()
    daemon = forks.start(site)
    assert isinstance(site.ask(enrol(run_document())), Accepted)
    daemon.end()


@pytest.mark.parametrize("kind", ["a socket in use", "a file"])
def test_what_is_not_its_own_socket_stays(forks, tmp_path, kind):
    site = new_site(tmp_path / "site")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        if kind == "a file":
            site.socket_path.write_text("mine")
        else:
            other.bind(str(site.socket_path))
            other.listen()
        daemon = forks.start(site, must=False)
        assert not daemon.ready
        assert daemon.wait() == 1
        assert site.socket_path.exists()


# ---------------------------------------------------------------------- signals


def changed(site, before, after):
    text = site.policy_path.read_text()
    assert before in text
    site.policy_path.write_text(text.replace(before, after))


def hung_up(site, daemon, line):
    count = site.log().count(line)
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: site.log().count(line) > count)


def test_another_policy_and_another_log_while_it_runs(forks, tmp_path):
    site = new_site(tmp_path / "site")
    daemon = forks.start(site)
    document = run_document()
    assert isinstance(site.ask(enrol(document)), Accepted)
    assert isinstance(site.ask(slot(document, 0)), Reply)
    (site.folder / "book/owner.log").rename(site.folder / "owner.log.old")
    changed(site, "least_noise = 1.0", "least_noise = 3.0")
    hung_up(site, daemon, "the policy was read again")
    assert site.ask(slot(document, 1)) == Declined(Refusal.NOISE)
    assert site.ask(enrol(run_document(2))) == Declined(Refusal.NOISE)
    changed(site, "least_noise = 3.0", "least_noise = 1.0")
    hung_up(site, daemon, "the policy was read again")
    assert isinstance(site.ask(slot(document, 1)), Reply)
    changed(site, "mu = 50.0", "mu = 60.0")
    hung_up(site, daemon, "another budget needs a restart")
    changed(site, "mu = 60.0", "mu = -1")
    hung_up(site, daemon, "the policy stays as it was")
    assert isinstance(site.ask(slot(document, 2)), Reply)
    daemon.end()


def test_ended_while_an_answer_waits_it_is_stored_and_not_sent(forks, tmp_path):
    site = new_site(tmp_path / "site", seconds=0.2)
    daemon = forks.start(site)
    document = run_document()
    site.ask(enrol(document))
    changed(site, "seconds = 0.2", "seconds = 600")
    hung_up(site, daemon, "the policy was read again")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(site.socket_path))
        sock.sendall(sites.question_frame(slot(document, 0)))
        until(lambda: charged(site) == 1)
        assert daemon.end() == signal.SIGTERM
        assert sock.recv(1) == b""
    changed(site, "seconds = 600", "seconds = 0")
    daemon = forks.start(site)
    assert isinstance(site.ask(slot(document, 0)), Reply)
    assert charged(site) == 1
    daemon.end()


def charged(site):
    with site.ledger() as ledger:
        return sum(run.asked for run in ledger.runs())


# ---------------------------------------------------------------------- when answers leave


def test_when_an_answer_leaves():
    assert leaving(10.0, 10.0, 2.0) == 12.0
    assert leaving(10.0, 12.0, 2.0) == 12.0
    assert leaving(10.0, 12.001, 2.0) == 14.0
    assert leaving(10.0, 17.5, 2.0) == 18.0
    assert leaving(10.0, 10.5, 0.0) == 10.5


def test_answers_leave_after_a_fixed_time_one_after_another(forks, tmp_path):
    """A question that waits for another one leaves a whole time after it: its own time begins when the other has left."""
    site = new_site(tmp_path / "site", seconds=0.4)
    daemon = forks.start(site)
    document = run_document()
    begun = time.monotonic()
    site.ask(enrol(document))
    took = [time.monotonic() - begun]
    for question in (slot(document, 0), slot(document, 0), slot(document, 0, value=3.0), enrol(run_document(2, noise=0.5))):
        begun = time.monotonic()
        site.ask(question)
        took.append(time.monotonic() - begun)
    for each in took:  # accepted, answered, stored, declined: a multiple of the time if the machine is busy
        assert each % 0.4 == pytest.approx(0.1, abs=0.1), took
    together = []
    begun = time.monotonic()

    def ask(round, after):
        time.sleep(after)
        site.ask(slot(document, round))
        together.append(time.monotonic() - begun)

    threads = [threading.Thread(target=ask, args=(3, after)) for after in (0.0, 0.2, 0.3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.diff([0.0, *sorted(together)]) == pytest.approx(np.full(3, 0.44), abs=0.1)  # not 0.2 after each other
    daemon.end()


def test_nothing_is_said_beside_a_training(forks, tmp_path):
    """How fast a bad frame is declined while the desk works would tell how long it works."""
    site = new_site(tmp_path / "site", seconds=1.0)
    daemon = forks.start(site)
    document = run_document()
    site.ask(enrol(document))
    ended = []

    def ask():
        site.ask(slot(document, 0))
        ended.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(site.socket_path))
        sock.sendall(b"a frame that is none " * 3)
        sock.recv(1)
        declined = time.monotonic()
    asking.join()
    assert declined > ended[0] - 0.05
    daemon.end()


def test_a_late_answer_is_told_to_the_owner(forks, tmp_path):
    site = new_site(tmp_path / "site", seconds=0.0001)
    daemon = forks.start(site)
    document = run_document()
    site.ask(enrol(document))
    site.ask(slot(document, 0))
    until(lambda: "later than replies.seconds" in site.log())
    daemon.end()
    with site.ledger() as ledger:
        assert ledger.run(document.run).late >= 1


# ---------------------------------------------------------------------- runs


def numbers(reply):
    return np.frombuffer(read_vector(reply.body, "upload", "F32", PARAMETERS), np.float32)


def test_absent_rounds_are_charged_and_look_alike(forks, tmp_path):
    """The owner tosses the coin: what is absent looks like any reply, is stored like any, and its round is spent."""
    site = new_site(tmp_path / "site")
    daemon = forks.start(site)
    document = run_document(1, rounds=20, participation=0.5)
    site.ask(enrol(document))
    replies = [site.ask(slot(document, round)) for round in range(20)]
    assert {reply.status for reply in replies} == {"sent", "absent"}, "fails once in 500,000 runs"
    assert len({len(answer_frame(reply)) for reply in replies}) == 1
    assert [site.ask(slot(document, round)) for round in range(20)] == replies
    assert len({reply.body for reply in replies}) == 20
    for reply in replies:
        assert np.isfinite(numbers(reply)).all()
        assert numbers(reply).any()
        assert reply.queries == (2 if reply.status == "sent" else 0)
    daemon.end()
    assert charged(site) == 20


def test_a_run_goes_on_after_a_restart(forks, tmp_path):
    """Rounds before and after it, a model that is kept, and more runs than are held in memory."""
    site = new_site(tmp_path / "site", mu=200.0)
    documents = [run_document(number, rule={"name": "ditto"}) for number in range(1, MOST_IN_MEMORY + 3)]
    for round in range(3):
        daemon = forks.start(site)
        for document in documents:
            if round == 0:
                assert isinstance(site.ask(enrol(document)), Accepted)
            assert isinstance(site.ask(slot(document, round)), Reply)
        assert daemon.end() == signal.SIGTERM
    assert charged(site) == 3 * len(documents)
    assert "error" not in site.log()


# ---------------------------------------------------------------------- the desk alone


@pytest.fixture
def desk(tmp_path):
    site = new_site(tmp_path / "site")
    ledger = site.ledger(readonly=False)
    with closing(OwnerLog(site.folder / "book/owner.log")) as log:
        found = Desk(site.policy, ledger, records_of(site.policy), log)
        found.site = site
        yield found
    ledger.close_file()


@pytest.mark.parametrize("where", ["trainer", "ledger"])
def test_what_fails_inside_is_one_constant_outside(desk, monkeypatch, where):
    """The owner's log has the reason; nothing is charged; and the slot is answered later with noise of its own."""
    document = run_document()
    assert isinstance(desk.decide(enrol(document), "me"), Accepted)
    trainer = desk._held[document.run].trainer
    seen = []
    answer = trainer.answer

    def failing(*args, **named):
        if where == "ledger":
            raise OSError("the disk is full: record 17 of patient 4711")
        seen.append(answer(*args))
        raise RuntimeError("record 17 of patient 4711")

    monkeypatch.setattr(*((trainer, "answer") if where == "trainer" else (desk.ledger, "charge")), failing)
    found = desk.decide(slot(document, 0), "me")
    monkeypatch.undo()
    assert found == Declined(Refusal.FAILED)
    assert b"4711" not in answer_frame(found)
    assert "4711" in desk.site.log()
    assert desk.ledger.run(document.run).asked == 0
    assert document.run not in desk._held, "a trainer that has drawn noise for this slot must not be asked again"
    reply = desk.decide(slot(document, 0), "me")
    assert isinstance(reply, Reply)
    assert all(outcome.body != reply.body for outcome in seen)
    assert desk.ledger.run(document.run).asked == 1


def test_nothing_is_returned_before_it_is_charged(desk, monkeypatch):
    document = run_document()
    desk.decide(enrol(document), "me")
    order = []
    charge = desk.ledger.charge
    answer = desk._held[document.run].trainer.answer
    monkeypatch.setattr(desk._held[document.run].trainer, "answer", lambda *a: order.append("trained") or answer(*a))
    monkeypatch.setattr(desk.ledger, "charge", lambda *a, **n: order.append("charged") or charge(*a, **n))
    reply = desk.decide(slot(document, 0), "me")
    assert order == ["trained", "charged"]
    assert desk.ledger.stored(document.run, 0, 0).body == reply.body
    desk.decide(slot(document, 0), "me")
    assert order == ["trained", "charged"], "a stored slot is not trained again"


def test_a_run_ended_by_its_owner_is_not_answered_from_memory(desk):
    document = run_document()
    desk.decide(enrol(document), "me")
    with_another_program = desk.site.ledger(readonly=False)
    with_another_program.close(document.run, "the owner ends it")
    with_another_program.close_file()
    assert desk.decide(slot(document, 0), "me") == Declined(Refusal.CLOSED)


def test_what_cannot_be_trained_is_said_so(desk):
    """Records of another shape, and a model that turns out to be too large once it is built."""
    text = json.loads(run_document().text)
    text["shape"] = [FEATURES + 1]
    assert desk.decide(Enrol("a", text), "me") == Declined(Refusal.TRAINING)
    limits = replace(desk.policy.limits, models=("tests.owner.nets:linear",), parameters=PARAMETERS - 1)
    document = run_document(2, model={"name": "tests.owner.nets:linear"})
    desk.changed(replace(desk.policy, limits=limits))
    assert desk.decide(enrol(document), "me") == Declined(Refusal.MODEL)
    desk.changed(replace(desk.policy, limits=replace(limits, parameters=PARAMETERS)))
    assert isinstance(desk.decide(enrol(document), "me"), Accepted)
    assert "error" not in desk.site.log()


def test_an_old_run_is_closed_whoever_asks_next(desk):
    document = run_document()
    desk.decide(enrol(document), "me")
    assert isinstance(desk.decide(slot(document, 0), "me"), Reply)
    desk.changed(replace(desk.policy, limits=replace(desk.policy.limits, days=1e-9)))
    assert desk.decide(slot(document, 1), "me") == Declined(Refusal.CLOSED)


def test_a_run_that_was_killed_in_its_enrolment_must_be_enrolled_again(desk):
    document = run_document()
    desk.ledger.reserve(
        document.run, document=document.digest, text=document.text, plan=document.jobs[0].plan, by="me"
    )  # fmt: skip
    assert desk.decide(slot(document, 0), "me") == Declined(Refusal.RUN)
    assert isinstance(desk.decide(enrol(document), "me"), Accepted)
    assert isinstance(desk.decide(slot(document, 0), "me"), Reply)


def test_a_late_answer_that_cannot_be_noted_ends_nothing(desk, monkeypatch):
    document = run_document()
    desk.decide(enrol(document), "me")

    def failing(run):
        raise OSError("the disk is full")

    monkeypatch.setattr(desk.ledger, "note_late", failing)
    desk.note_late(document.run)
    assert "could not be noted" in desk.site.log()


def test_each_trainer_has_new_draws(desk):
    """After a restart no noise comes back: draws are made with the trainer, and nothing of them is on the disk."""
    document = run_document()
    made = []
    real = desk._draws
    desk._draws = lambda: made.append(real()) or made[-1]
    desk.decide(enrol(document), "me")
    desk.changed(desk.policy)
    desk.decide(slot(document, 0), "me")
    assert len(made) == 2


def test_frames_and_connection_need_no_torch():
    code = """
import sys
sys.modules["torch"] = None
from prifedsync.asking import connection, frames, questions, refusals, transfer, vectors
"""
    environment = {**os.environ, "PYTHONPATH": str(sites.ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
