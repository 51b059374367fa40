"""A hostile asker at a real daemon's socket. Each attack is refused or harmless, and afterwards the ledger is whole, the
budget is what it must be, and the daemon still answers."""

import hashlib
import json
import os
import pickle
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest

from prifedsync.asking.connection import Connection, NoAnswer
from prifedsync.asking.frames import MAGIC, MOST_HEADER, PREFIX, answer_frame, question_frame, read_answer
from prifedsync.asking.questions import VERSION, Accepted, Answer, Declined, Enrol, Head, Introduction, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.asking.transfer import Deadline, Gone, receive_frame
from prifedsync.asking.vectors import read_vector, vector_bytes
from prifedsync.local import masks
from prifedsync.owner.keys import make_identity, read_identity

from ..owner import sites
from ..owner.sites import PARAMETERS, enrol, helper, new_site, run_document, slot, until

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


@pytest.fixture(scope="module")
def forks():
    with sites.Forks() as found:
        yield found


@dataclass
class Owner:
    """An owner whose daemon runs, with an honest run enrolled."""

    site: sites.Site
    daemon: sites.Daemon
    document: object
    charged: int = 0  # slots that the test has been answered, each counted once
    runs: int = 1

    def ask(self, question):
        return self.site.ask(question)

    def refuses(self, question, refusal):
        found = self.ask(question)
        assert found == Declined(refusal), found

    def answers(self, question, new=True):
        reply = self.ask(question)
        assert isinstance(reply, Reply), reply
        self.charged += new
        return reply

    def accepts(self, document):
        accepted = self.ask(enrol(document))
        assert isinstance(accepted, Accepted), accepted
        self.runs += 1


def opened(forks, folder, document, **more):
    told = {key: more.pop(key) for key in ("frame_seconds", "user", "group") if key in more}
    site = new_site(folder, **more)
    daemon = forks.start(site, **told)
    accepted = site.ask(enrol(document))
    assert isinstance(accepted, Accepted), accepted
    return Owner(site, daemon, document)


def closed(owner):
    """What must be so after every attack: the daemon answers and ends as it should, and the ledger has what left."""
    again = owner.ask(enrol(owner.document))
    assert isinstance(again, Accepted), again
    assert owner.daemon.end() == signal.SIGTERM
    ledger = owner.site.ledger()
    runs = ledger.runs()
    totals = ledger.totals()
    ledger.close_file()
    assert len(runs) == owner.runs
    assert sum(run.asked + run.spare for run in runs) == owner.charged
    assert totals.spent == pytest.approx(sum(run.cost.of(run.asked, run.spare) for run in runs))
    assert totals.spent + totals.reserved <= totals.limit * (1 + 1e-9)
    assert "Traceback" not in owner.site.log()


@pytest.fixture
def owner(forks, tmp_path):
    found = opened(forks, tmp_path / "site", run_document())
    yield found
    closed(found)


def spoiled(document, *path, value):
    """The document with another value at a path."""
    mapping = json.loads(document.text)
    inner = mapping
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return Enrol("a", mapping)


def plan(*keys):
    return ("clients", 0, "plan", *keys)


# ---------------------------------------------------------------------- documents


def test_no_noise(owner):
    owner.refuses(spoiled(run_document(2), *plan(), value=None), Refusal.MALFORMED)
    for noise in (0.0, -1.0, 1e-300):
        owner.refuses(spoiled(run_document(2), *plan("mechanism", "noise_multiplier"), value=noise), Refusal.MALFORMED)
    owner.refuses(enrol(run_document(2, noise=0.99)), Refusal.NOISE)


def test_huge_clip(owner):
    owner.refuses(enrol(run_document(2, clip=1.01)), Refusal.CLIP)
    owner.refuses(enrol(run_document(2, clip=1e12)), Refusal.CLIP)
    owner.refuses(spoiled(run_document(2), *plan("mechanism", "clip_norm"), value=1e300), Refusal.MALFORMED)


def test_plan_of_other_records(owner):
    """Fewer or more records than there are, so that batches look rarer than they are."""
    for records in (sites.RECORDS - 1, sites.RECORDS + 1, 10**9):
        owner.refuses(enrol(run_document(2, records=records)), Refusal.RECORDS)


def test_more_rounds_than_the_budget(owner):
    owner.refuses(enrol(run_document(2, rounds=5000)), Refusal.BUDGET)
    owner.refuses(enrol(run_document(2, rounds=5001)), Refusal.ROUNDS)


def test_more_rounds_than_the_plan(owner):
    for round in (0, 1, 4):
        owner.answers(slot(owner.document, round))
    for round in (5, 6, 10**9, 2**63 - 1):
        owner.refuses(slot(owner.document, round), Refusal.BEYOND)
    for round in (2, 3):  # rounds may be left out, but not got back
        owner.refuses(slot(owner.document, round), Refusal.ORDER)


def test_several_mechanisms_chosen_along_the_way(forks, tmp_path):
    """Less and less noise, run after run, each chosen when the last one was seen, until nothing is left."""
    owner = opened(forks, tmp_path / "site", run_document(1, rounds=1, noise=8.0), mu=2.0)
    owner.answers(slot(owner.document, 0))
    accepted = 0
    for number, noise in enumerate((6.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0), start=2):
        document = run_document(number, rounds=1, noise=noise)
        answer = owner.ask(enrol(document))
        if isinstance(answer, Accepted):
            owner.runs += 1
            accepted += 1
            owner.answers(slot(document, 0))
        else:
            assert answer == Declined(Refusal.BUDGET)
    assert 1 < accepted < 7
    closed(owner)


def test_two_runs_race_for_the_last_of_the_budget(forks, tmp_path):
    """Many askers at once, and the budget covers the first run and one more."""
    first = run_document(1)
    site = new_site(tmp_path / "measure")
    ledger = site.ledger(readonly=False)
    cost = ledger.budget.cost(first.jobs[0].plan).of(5, 0)
    ledger.close_file()
    owner = opened(forks, tmp_path / "site", first, mu=(2.5 * cost) ** 0.5)
    documents = [run_document(number) for number in range(2, 10)]
    found = []
    for _ in range(5):
        threads = [threading.Thread(target=lambda d=each: found.append(owner.ask(enrol(d)))) for each in documents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    owner.runs += 1
    assert len(found) == 40
    assert sum(isinstance(each, Accepted) for each in found) == 5, "one run is accepted, each time that it asks"
    assert all(isinstance(each, Accepted) or each == Declined(Refusal.BUDGET) for each in found)
    closed(owner)


def test_a_run_with_another_document(owner):
    owner.refuses(enrol(run_document(1, noise=1.5)), Refusal.CHANGED)
    owner.refuses(enrol(run_document(1, rounds=6)), Refusal.CHANGED)


def test_a_model_that_is_not_allowed(owner, tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name in ("mlp", "os:system", "evil:net", "prifedsync.models:linear"):
        owner.refuses(spoiled(run_document(2), "model", "name", value=name), Refusal.MODEL)
    for name in ("os:system", "evil:Rule", "interpolate"):
        found = owner.ask(spoiled(run_document(2), "rule", "name", value=name))
        assert found in (Declined(Refusal.RULE), Declined(Refusal.MALFORMED))
    assert not (tmp_path / "ran").exists()


def test_a_path_as_a_name(owner):
    for name in ("/etc/passwd", "../../evil.py:net", "file:///etc/passwd", "a/b:c", ""):
        owner.refuses(spoiled(run_document(2), "model", "name", value=name), Refusal.MALFORMED)
    for name in ("../../book/ledger.db", "/etc/passwd", "\0", "x" * 32):
        owner.refuses(spoiled(run_document(2), "run", value=name), Refusal.MALFORMED)
    header = json.loads(question_frame(slot(owner.document, 0))[PREFIX.size :].split(b"}")[0] + b"}")
    raw = json.dumps({**header, "run": "../../book/ledger.db"}).encode()
    assert exchanged(owner, PREFIX.pack(MAGIC, len(raw), 0) + raw) == Declined(Refusal.MALFORMED)


def test_a_question_for_another_client(owner):
    """Whoever asks has confused two owners: what the one spends must not be counted for the other."""
    owner.refuses(enrol(owner.document, client="b"), Refusal.NAME)
    owner.refuses(slot(owner.document, 0, client="b"), Refusal.NAME)
    owner.answers(slot(owner.document, 0))
    owner.refuses(slot(owner.document, 0, client="b"), Refusal.NAME)  # nor is what was stored given away


def test_a_roster_short_of_peers(owner):
    owner.refuses(enrol(run_document(2, clients=("a",))), Refusal.PARTICIPANTS)
    owner.refuses(enrol(run_document(2, clients=("b", "c"))), Refusal.CLIENT)


# ---------------------------------------------------------------------- slots


def test_the_same_slot_with_other_helpers(owner):
    """To average the noise away, or to see how the gradient turns."""
    first = owner.answers(slot(owner.document, 0, value=0.5))
    for value in (0.5 + 2**-20, -0.5, 0.0):
        owner.refuses(slot(owner.document, 0, value=value), Refusal.SLOT)
    assert owner.answers(slot(owner.document, 0, value=0.5), new=False) == first
    owner.refuses(slot(owner.document, 0, attempt=1, value=0.5), Refusal.BEYOND)


def test_replay_of_an_old_runs_frames(owner):
    """The recorded bytes of an exchange, sent again: during the run, after other rounds, and once it is closed."""
    frame = question_frame(slot(owner.document, 0))
    first = exchanged(owner, frame)
    owner.charged += 1
    owner.answers(slot(owner.document, 1))
    assert exchanged(owner, frame) == first
    ledger = owner.site.ledger(readonly=False)
    ledger.close(owner.document.run, "the owner ends it")
    ledger.close_file()
    assert exchanged(owner, frame) == Declined(Refusal.SLOT)  # it was charged, and its bytes are gone
    owner.refuses(slot(owner.document, 2), Refusal.CLOSED)
    owner.refuses(enrol(owner.document), Refusal.CLOSED)
    owner.document = run_document(2)
    owner.accepts(owner.document)


def test_earlier_rounds_and_unknown_runs(owner):
    owner.answers(slot(owner.document, 3))
    owner.refuses(slot(owner.document, 2), Refusal.ORDER)
    owner.refuses(slot(run_document(7), 0), Refusal.RUN)


def test_a_head_that_the_ledger_does_not_have(owner):
    """A server that saw more than the ledger knows tells the owner that the ledger was rolled back."""
    reply = owner.answers(slot(owner.document, 0))
    for head in (Head(10**6, bytes(32)), Head(reply.head.number, bytes(32)), Head(2**63 - 1, b"")):
        owner.refuses(slot(owner.document, 1, head=head), Refusal.ANCHOR)
    owner.answers(slot(owner.document, 1, head=reply.head))


# ---------------------------------------------------------------------- helpers


def numbers(reply):
    return np.frombuffer(read_vector(reply.body, "upload", "F32", PARAMETERS), np.float32)


@pytest.mark.parametrize(
    "value",
    [np.nan, np.inf, -np.inf, 1e30, -3.4e38, 1e-45, 1e-38],
    ids=["nan", "inf", "-inf", "1e30", "-max", "tiny", "1e-38"],
)
def test_helpers_that_no_number_should_be(owner, value):
    """NaN, infinity, 1e30 and denormals: the reply is as long as any other, and finite."""
    honest = owner.answers(slot(owner.document, 0))
    hostile = owner.answers(slot(owner.document, 1, value=value))
    assert len(answer_frame(honest)) == len(answer_frame(hostile))
    assert np.isfinite(numbers(hostile)).all()
    mixed = np.zeros(PARAMETERS, np.float32)
    mixed[::2] = value
    reply = owner.answers(Answer("a", owner.document.run, 2, 0, vector_bytes("helper", "F32", mixed.tobytes())))
    assert np.isfinite(numbers(reply)).all()


def test_a_helper_of_another_shape(owner):
    one = np.ones(PARAMETERS, np.float32)
    bodies = [
        b"",
        helper(count=PARAMETERS - 1),
        helper()[:-1],
        vector_bytes("upload", "F32", one.tobytes()),
        vector_bytes("helper", "U32", one.tobytes()),
        vector_bytes("helper", "F64", np.ones(PARAMETERS // 2).tobytes()),
    ]
    for body in bodies:
        owner.refuses(Answer("a", owner.document.run, 0, 0, body), Refusal.HELPER)
    for body in (helper(count=PARAMETERS + 1), vector_bytes("helper", "F64", np.ones(PARAMETERS).tobytes())):
        owner.refuses(Answer("a", owner.document.run, 0, 0, body), Refusal.HELPER)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle(owner, tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    owner.refuses(Answer("a", owner.document.run, 0, 0, bomb[: len(helper())]), Refusal.HELPER)
    assert exchanged(owner, PREFIX.pack(MAGIC, len(bomb), 0) + bomb) == Declined(Refusal.MALFORMED)
    assert exchanged(owner, bomb + bytes(PREFIX.size)) == Declined(Refusal.MALFORMED)
    owner.refuses(spoiled(run_document(2), "model", "name", value=bomb.hex()), Refusal.MALFORMED)
    assert not (tmp_path / "exploded").exists()


# ---------------------------------------------------------------------- frames and sockets


def exchanged(owner, frame, shutdown=False):
    """Send these bytes as they are; the answer, or None if the daemon closes without a word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(owner.site.socket_path))
        try:
            sock.sendall(frame)
            if shutdown:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the daemon has said what it has to say
        try:
            return read_answer(*receive_frame(sock, Deadline(20), lambda _: 10**6))
        except Gone:
            return None


def test_a_frame_of_10_gb(owner):
    before = owner.daemon.memory()
    header = question_frame(slot(owner.document, 0))[PREFIX.size :].split(b"}")[0] + b"}"
    huge = PREFIX.pack(MAGIC, len(header), 10 * 2**30) + header + bytes(2**16)
    assert exchanged(owner, huge) == Declined(Refusal.HELPER)
    assert exchanged(owner, PREFIX.pack(MAGIC, 2**32 - 1, 0) + bytes(2**16)) == Declined(Refusal.MALFORMED)
    document = question_frame(enrol(run_document(2)))[PREFIX.size :]
    assert exchanged(owner, PREFIX.pack(MAGIC, len(document), 10 * 2**30) + document) == Declined(Refusal.MALFORMED)
    assert owner.daemon.memory() < before + 64 * 2**20


def test_the_largest_headers(owner):
    """As much JSON as fits, in the forms that take most memory, from many askers at once."""
    before = owner.daemon.memory()
    head = {"version": VERSION, "question": "enrol", "client": "a", "session": ""}
    body = json.dumps(head).encode()[:-1] + b', "document":{"x":[' + b"{}," * (MOST_HEADER // 3 - 60) + b"{}]}}"
    frame = PREFIX.pack(MAGIC, len(body), 0) + body
    found = []
    threads = [threading.Thread(target=lambda: found.append(exchanged(owner, frame))) for _ in range(12)]
    most = before
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, owner.daemon.memory())
        time.sleep(0.005)
    assert {each.refusal for each in found} <= {Refusal.MALFORMED, Refusal.BUSY}
    assert most < before + 600 * 2**20


def test_a_slow_frame(forks, tmp_path):
    """A byte now and then: the daemon closes the connection, and answers others meanwhile."""
    owner = opened(forks, tmp_path / "site", run_document(), frame_seconds=1.0)
    frame = question_frame(slot(owner.document, 0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(owner.site.socket_path))
        begun = time.monotonic()
        sent = 0
        with suppress(BrokenPipeError):
            while sent < len(frame):
                sock.sendall(frame[sent : sent + 1])
                sent += 1
                owner.answers(slot(owner.document, 0), new=sent == 1)
                time.sleep(0.1)
        assert 5 <= sent < len(frame)
        assert 0.9 < time.monotonic() - begun < 5
    closed(owner)


def test_a_half_closed_socket(owner):
    frame = question_frame(slot(owner.document, 0))
    for cut in (0, 3, PREFIX.size, PREFIX.size + 5, len(frame) - 1):
        assert exchanged(owner, frame[:cut], shutdown=True) is None
    first = exchanged(owner, frame, shutdown=True)
    assert isinstance(first, Reply)
    owner.charged += 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:  # asks, and does not wait for the reply
        sock.connect(str(owner.site.socket_path))
        sock.sendall(question_frame(slot(owner.document, 1)))
    reply = owner.answers(slot(owner.document, 1))
    assert owner.answers(slot(owner.document, 1), new=False) == reply


def test_too_many_connections(owner):
    """Sixteen that say nothing: the next one is told that the owner is busy; when one ends, it is answered."""
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(16)]
    for sock in silent:
        sock.connect(str(owner.site.socket_path))
    until(lambda: owner.ask(slot(owner.document, 0)) == Declined(Refusal.BUSY))
    for sock in silent:
        sock.close()
    until(lambda: isinstance(owner.ask(slot(owner.document, 0)), Reply))
    owner.charged += 1


def test_headers_that_are_no_question(owner):
    bodies = [
        b"",
        b"{}",
        b"[" * 10**5,
        json.dumps({"version": VERSION + 1, "question": "enrol"}).encode(),
        json.dumps({"version": VERSION, "question": "enrol", "client": "a", "document": {}, "session": ""}).encode(),
        json.dumps({"version": VERSION, "question": "shell", "client": "a", "document": {}, "session": ""}).encode(),
        b"\xff\xfe",
    ]
    for body in bodies:
        found = exchanged(owner, PREFIX.pack(MAGIC, len(body), 0) + body)
        assert found in (Declined(Refusal.MALFORMED), Declined(Refusal.VERSION)), body
    assert exchanged(owner, os.urandom(4096)) == Declined(Refusal.MALFORMED)


def test_what_a_refusal_says_is_one_of_a_fixed_list(owner):
    """The bytes of a refusal depend on which one it is, and on nothing else."""
    frames = set()
    for noise in (0.9, 0.5):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(owner.site.socket_path))
            sock.sendall(question_frame(enrol(run_document(2, noise=noise))))
            frames.add(receive_frame(sock, Deadline(20), lambda _: 0))
    assert len(frames) == 1


# ---------------------------------------------------------------------- masks


MASKS = """[masks]
identity = "identity.key"
peers = {{ b = "{b}", c = "{c}" }}
"""
SUMMED = {"local": {"local_steps": 1}, "privacy": {"masks": True, "attempts": 2, "least_clients": 3}}


@dataclass
class Masked:
    """An owner in a masked run, and the peers that the asker plays."""

    owner: Owner
    secrets: dict

    @property
    def document(self):
        return self.owner.document

    def meets(self, session):
        """Enrol under a session; the introductions of all."""
        accepted = self.owner.ask(enrol(self.document, session))
        assert isinstance(accepted, Accepted), accepted
        run = hashlib.blake2b(bytes.fromhex(self.document.run) + session, digest_size=32).digest()
        public = {name: masks.public_identity(secret) for name, secret in self.secrets.items()}
        public["a"] = masks.public_identity(read_identity(self.owner.site.policy))
        found = [accepted.introduction]
        for name, secret in self.secrets.items():
            own = masks.Peer(name, secret, run, public, 3).introduction
            found.append(Introduction(own.name, own.key, own.signature))
        return tuple(found)

    def slot(self, round, attempt, session, introductions=(), clients=("a", "b", "c")):
        return slot(self.document, round, attempt, session=session, introductions=tuple(introductions), clients=clients)


@pytest.fixture
def masked(forks, tmp_path):
    secrets = {name: masks.new_identity() for name in "bc"}
    pinned = {name: masks.public_identity(secret).hex() for name, secret in secrets.items()}
    site = new_site(tmp_path / "site", more=MASKS.format(**pinned))
    make_identity(site.policy)
    document = run_document(1, clients=("a", "b", "c"), **SUMMED)
    daemon = forks.start(site)
    assert isinstance(site.ask(enrol(document, b"first")), Accepted)
    found = Masked(Owner(site, daemon, document), secrets)
    yield found
    closed(found.owner)


def flipped(content, bit=3):
    return bytes([content[0] ^ (1 << bit), *content[1:]])


def test_a_peers_key_with_a_flipped_bit(masked):
    own, b, c = masked.meets(b"s")
    wrong = [
        (own, replace(b, key=flipped(b.key)), c),
        (own, b, replace(c, signature=flipped(c.signature))),
        (own, replace(b, name="c"), replace(c, name="b")),
        (own, b, b),
        (own, b, replace(c, key=c.key[:-1])),
        (replace(own, key=flipped(own.key)), b, c),
    ]
    for introductions in wrong:
        masked.owner.refuses(masked.slot(0, 0, b"s", introductions), Refusal.INTRODUCTION)
    masked.owner.answers(masked.slot(0, 0, b"s", (own, b, c)))


def test_introductions_of_another_session(masked):
    old = masked.meets(b"s")
    new = masked.meets(b"t")
    masked.owner.refuses(masked.slot(0, 0, b"s", old), Refusal.SESSION)
    masked.owner.refuses(masked.slot(0, 0, b"t"), Refusal.SESSION)
    masked.owner.refuses(masked.slot(0, 0, b"t", (new[0], *old[1:])), Refusal.INTRODUCTION)
    masked.owner.answers(masked.slot(0, 0, b"t", new))


def test_an_enrolment_that_is_sent_again_is_the_same_meeting(masked):
    """Whoever asks may have taken either answer, and may have sent the second question long ago."""
    met = masked.meets(b"s")
    again = masked.owner.ask(enrol(masked.document, b"s"))
    assert again.introduction == met[0]
    masked.owner.answers(masked.slot(0, 0, b"s", met))
    assert masked.owner.ask(enrol(masked.document, b"s")).introduction == met[0]
    masked.owner.answers(masked.slot(1, 0, b"s", met))


def test_a_peer_whose_key_was_replaced(masked):
    """Once the owner pins another key, nothing that the old one has signed is trusted, also in a session that began."""
    site = masked.owner.site
    met = masked.meets(b"s")
    masked.owner.answers(masked.slot(0, 0, b"s", met))
    stolen = masks.public_identity(masked.secrets["b"]).hex()
    masked.secrets["b"] = masks.new_identity()
    text = site.policy_path.read_text()
    site.policy_path.write_text(text.replace(stolen, masks.public_identity(masked.secrets["b"]).hex()))
    os.kill(masked.owner.daemon.pid, signal.SIGHUP)
    sites.until(lambda: "the policy was read again" in site.log())
    masked.owner.refuses(masked.slot(1, 0, b"s"), Refusal.SESSION)
    new = masked.meets(b"t")
    masked.owner.refuses(masked.slot(1, 0, b"t", (new[0], met[1], new[2])), Refusal.INTRODUCTION)
    masked.owner.answers(masked.slot(1, 0, b"t", new))


def test_a_list_short_of_peers(masked):
    """With a list of two the server would learn what the other one, which is its own, leaves over."""
    met = masked.meets(b"s")
    for clients in (
        ("a",),
        ("a", "b"),
        ("b", "c"),
        ("a", "b", "d"),
        ("a", "b", "b"),
        ("c", "b", "a"),
        (),
        ("a", "b", "c", "d"),
    ):
        masked.owner.refuses(masked.slot(0, 0, b"s", met, clients), Refusal.LIST)
    masked.owner.answers(masked.slot(0, 0, b"s", met))
    masked.owner.refuses(masked.slot(0, 0, b"s", met, ("a", "b")), Refusal.SLOT)


def test_a_roster_with_a_stranger(masked):
    for clients in (("a", "b", "d"), ("a", "b", "c", "d")):
        masked.owner.refuses(enrol(run_document(2, clients=clients, **SUMMED)), Refusal.PEERS)
    coins = run_document(2, clients=("a", "b", "c"), participation=0.5, **SUMMED)
    masked.owner.refuses(enrol(coins), Refusal.TRAINING)


def test_a_restart_to_have_a_slot_masked_twice(masked, forks):
    """After a restart nobody has the old masks. The slot stays answered, and the round goes on as its next attempt."""
    first = masked.owner.answers(masked.slot(0, 0, b"s", masked.meets(b"s")))
    assert masked.owner.daemon.end() == signal.SIGTERM
    masked.owner.daemon = forks.start(masked.owner.site)
    assert masked.owner.answers(masked.slot(0, 0, b"s"), new=False) == first
    masked.owner.refuses(masked.slot(0, 1, b"s"), Refusal.SESSION)
    met = masked.meets(b"t")
    masked.owner.refuses(masked.slot(0, 0, b"t", met), Refusal.SLOT)
    second = masked.owner.answers(masked.slot(0, 1, b"t", met))
    assert second.body != first.body
    masked.owner.answers(masked.slot(0, 2, b"t"))
    masked.owner.refuses(masked.slot(0, 3, b"t"), Refusal.BEYOND)


# ---------------------------------------------------------------------- users


OWNER_USER, ASKING_USER, THIRD_USER, GROUP = 61001, 61002, 61003, 61010


def as_user(user, work):
    """Do some work as another user, in a process of its own; what it returns, as JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(GROUP, GROUP, GROUP)
            os.setresuid(user, user, user)
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return json.loads(pipe.read())


@ROOT_ONLY
def test_three_users(forks, tmp_path):
    """The asker can ask, and can read and change nothing of the owner's; a third user is closed without a word."""
    document = run_document()
    site = new_site(tmp_path / "site", users=[str(ASKING_USER)])
    for path in [site.folder, *site.folder.rglob("*")]:
        os.chown(path, OWNER_USER, GROUP)
    for name in ("book", "anchor"):
        (site.folder / name).chmod(0o700)
    (site.folder / "door").chmod(0o750)
    site.folder.chmod(0o710)
    sites.open_way(site.folder)
    daemon = forks.start(site, user=OWNER_USER, group=GROUP)

    def asks():
        accepted = site.ask(enrol(document))
        reply = site.ask(slot(document, 0))
        return [type(accepted).__name__, type(reply).__name__]

    def steals():
        changing = ["book/owner.log", "book/ledger.db", "book/ledger.db-wal", "anchor/anchor.json"]
        names = ["records.csv", "policy.toml", *changing]
        opened = []
        for name in names:
            for mode in ("rb", "ab"):
                try:
                    (site.folder / name).open(mode).close()
                    opened.append(name)
                except PermissionError:
                    continue
        for name in changing:
            try:
                os.stat(site.folder / name)
                opened.append(f"times of {name}")
            except PermissionError:
                continue
        for folder in (".", "book", "anchor"):
            try:
                opened += os.listdir(site.folder / folder)
            except PermissionError:
                continue
        memory = f"/proc/{daemon.pid}/mem"
        for act in (site.socket_path.unlink, lambda: os.kill(daemon.pid, 0), lambda: os.open(memory, os.O_RDONLY)):
            try:
                act()
                opened.append("something else")
            except PermissionError:
                continue
        return opened

    def is_closed():
        try:
            site.ask(enrol(document))
        except NoAnswer as none:
            return str(none)

    assert as_user(ASKING_USER, asks) == ["Accepted", "Reply"]
    assert as_user(ASKING_USER, steals) == []
    assert as_user(THIRD_USER, is_closed)
    assert "user 61003 is not one who may ask" in site.log()
    with pytest.raises(NoAnswer):
        site.ask(enrol(document))  # root is not in the list either
    assert daemon.end() == signal.SIGTERM
    ledger = site.ledger()
    (run,) = ledger.runs()
    ledger.close_file()
    assert (run.asked, run.by) == (1, str(ASKING_USER))
    assert {
        path.stat().st_mode & 0o077 for path in (site.ledger_path, site.anchor_path, site.folder / "book/owner.log")
    } == {0}


def test_connection_says_when_nobody_answers(tmp_path):
    with pytest.raises(NoAnswer):
        Connection(tmp_path / "nobody.sock").ask(replace(slot(run_document(), 0), helper=b""))
