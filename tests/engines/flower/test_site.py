"""A client's side: questions go to the owner's socket byte for byte, and nothing but its answers and constants leaves."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from prifedsync.asking.frames import MAGIC, PREFIX
from prifedsync.asking.transfer import Deadline, receive_raw
from prifedsync.engines.flower import calls, letters, site
from prifedsync.engines.flower.site import FOREIGN, TOO_LONG, UNREACHABLE, Door, answer, carry

from .faking import frame_of, identity
from .runtime import BUNDLE, FakeRuntime, task_of
from .test_letters import FOREIGN as FOREIGN_CONTENTS

ROOT = Path(__file__).resolve().parents[3]
SECRET = b"4711 kept at the site"
QUESTION = frame_of(b"a question", bytes(range(256)) * 40)
ANSWER = frame_of(b"an answer", bytes(reversed(range(256))) * 50)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture(autouse=True)
def _identity():
    identity()


class Owner:
    """A socket in a folder, and what it does with whoever comes."""

    def __init__(self, folder):
        self.path = folder / "kept-at-the-site.sock"
        self.heard = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.does = lambda sock, frame: sock.sendall(ANSWER)
        self._thread.start()

    def _serve(self):
        while True:
            sock, _ = self._socket.accept()
            with sock:
                frame = receive_raw(sock, Deadline(20.0), 2**30)
                if frame == frame_of(b"end"):
                    return
                self.heard.append(frame)
                self.does(sock, frame)

    def end(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(self.path))
            sock.sendall(frame_of(b"end"))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="site-"))  # a socket's path must be short
    yield made
    shutil.rmtree(made)


@pytest.fixture
def owner(folder):
    made = Owner(folder)
    yield made
    made.end()


def asks(content, kind=letters.TYPE):
    return Message(content, 101, kind, ttl=600.0)


def question():
    return asks(letters.content_of(QUESTION))


def answered(message, door):
    """What the SuperNode was told."""
    runtime = FakeRuntime(message)
    task = task_of(runtime)
    answer(task, door)
    return runtime


# ---------------------------------------------------------------------- questions and answers


def test_a_question_and_its_answer_travel_byte_for_byte(owner):
    asked = question()
    runtime = answered(asked, Door(owner.path, 20.0))
    assert owner.heard == [QUESTION]
    assert letters.frame_of(runtime.reply) == ANSWER
    assert runtime.reply.metadata.reply_to_message_id == asked.object_id
    assert runtime.confirmed == [asked.object_id]
    assert runtime.outputs == [("completed", "")]


def test_a_large_one_too(owner):
    large = frame_of(b"large", os.urandom(12 * 2**20))
    owner.does = lambda sock, frame: sock.sendall(large)
    runtime = answered(asks(letters.content_of(large)), Door(owner.path, 20.0))
    assert owner.heard == [large]
    assert letters.frame_of(runtime.reply) == large


def test_what_follows_an_answer_stays_at_the_site(owner):
    owner.does = lambda sock, frame: sock.sendall(ANSWER + SECRET)
    runtime = answered(question(), Door(owner.path, 20.0))
    assert letters.frame_of(runtime.reply) == ANSWER
    assert not runtime.left(SECRET)


def test_an_owner_may_decline_before_it_has_read_everything(folder):
    """It does not read a helper that is too long; what it said can still be read."""
    path = folder / "early.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def decline():
            sock, _ = listening.accept()
            with sock:
                sock.recv(10)
                sock.sendall(ANSWER)
                sock.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=decline)
        thread.start()
        runtime = answered(asks(letters.content_of(frame_of(b"large", bytes(8 * 2**20)))), Door(path, 20.0))
        thread.join()
    assert letters.frame_of(runtime.reply) == ANSWER


def test_a_question_that_is_longer_than_any_is_refused_before_it_fills_the_memory(owner):
    large = frame_of(b"large", os.urandom(30 * 2**20))
    runtime = FakeRuntime(asks(letters.content_of(large)))
    answer(task_of(runtime), Door(owner.path, 20.0, most=2**20))
    assert owner.heard == []
    assert sum(runtime.handed) < 25 * 2**20
    assert_nothing_but_the_constant(runtime, TOO_LONG, owner.path.parent)


def test_a_question_of_the_largest_size_is_carried(owner):
    whole = frame_of(b"a question", bytes(2**20 - len(frame_of(b"a question"))))
    assert len(whole) == 2**20
    runtime = FakeRuntime(asks(letters.content_of(whole)))
    answer(task_of(runtime), Door(owner.path, 20.0, most=2**20))
    assert owner.heard == [whole]


# ---------------------------------------------------------------------- owners that do not answer


def closes(sock, frame):
    """It is killed before it has said anything."""


def closes_early(sock, frame):
    sock.sendall(ANSWER[:-1])


def sends_garbage(sock, frame):
    sock.sendall(SECRET * 10)


def sends_too_much(sock, frame):
    sock.sendall(PREFIX.pack(MAGIC, 10, 2**20) + SECRET)


def sends_too_much_at_once(sock, frame):
    sock.sendall(PREFIX.pack(MAGIC, 2**31, 10) + SECRET)


def is_too_slow(sock, frame):
    sock.sendall(ANSWER[:20] + SECRET)
    time.sleep(0.4)


def assert_nothing_but_the_constant(runtime, constant, folder):
    reply = runtime.reply
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (letters.REFUSED, constant)
    assert runtime.outputs == [("completed", "")]
    for text in (
        SECRET,
        SECRET[:4],
        str(folder).encode(),
        b"kept-at",
        b"Errno",
        b"Error",
        b"rror:",
        b"Gone",
        b"frame",
        b"Trace",
    ):
        assert not runtime.left(text), text


@pytest.mark.parametrize(
    "does",
    [closes, closes_early, sends_garbage, sends_too_much, sends_too_much_at_once, is_too_slow],
    ids=lambda does: does.__name__,
)
def test_an_owner_that_fails_says_one_constant(owner, monkeypatch, does):
    monkeypatch.setattr(site, "MOST_BODY", 2**16)
    owner.does = does
    runtime = answered(question(), Door(owner.path, 0.2 if does is is_too_slow else 20.0))
    assert len(owner.heard) == 1
    assert_nothing_but_the_constant(runtime, UNREACHABLE, owner.path.parent)


@pytest.mark.parametrize("name", ["nobody.sock", "x" * 200, "a-file"])
def test_an_owner_that_is_not_there_says_the_same(folder, name):
    (folder / "a-file").write_bytes(SECRET)
    runtime = answered(question(), Door(folder / name, 20.0))
    assert_nothing_but_the_constant(runtime, UNREACHABLE, folder)


def test_an_error_that_nobody_thought_of_ends_the_task_with_the_same(owner, monkeypatch):
    def fails(door, frame):
        raise MemoryError(SECRET.decode())

    monkeypatch.setattr(site, "_asked", fails)
    runtime = carried([task_of(FakeRuntime(question()))], monkeypatch, Door(owner.path, 20.0))[0]
    assert runtime.outputs == [("failed", UNREACHABLE)]
    assert runtime.replies == []
    assert not runtime.left(SECRET[:4])
    assert runtime.calls[-1] == "close"


# ---------------------------------------------------------------------- what is no question


@pytest.mark.parametrize("content", FOREIGN_CONTENTS.values(), ids=FOREIGN_CONTENTS)
def test_a_foreign_message_never_reaches_the_owner(owner, content):
    runtime = answered(asks(content), Door(owner.path, 20.0))
    assert owner.heard == []
    assert runtime.reply.error.reason == FOREIGN
    assert_nothing_but_the_constant(runtime, FOREIGN, owner.path.parent)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", letters.WHO])
def test_a_message_of_another_type_never_does(owner, kind):
    runtime = answered(asks(letters.content_of(QUESTION), kind), Door(owner.path, 20.0))
    assert owner.heard == []
    assert_nothing_but_the_constant(runtime, FOREIGN, owner.path.parent)


def test_a_train_message_as_flower_sends_it_is_refused(owner):
    content = RecordDict({"arrays": ArrayRecord({}), "config": ConfigRecord({"lr": 0.1})})
    runtime = answered(asks(content, "train"), Door(owner.path, 20.0))
    assert runtime.reply.error.reason == FOREIGN


@pytest.mark.parametrize("kind", [kind for kind in calls.ALL_TASKS if kind != "flwr-clientapp"] + ["", "flwr-something"])
def test_every_other_task_is_refused_without_looking_at_it(owner, kind):
    runtime = FakeRuntime(question())
    answer(task_of(runtime, kind), Door(owner.path, 20.0))
    assert runtime.calls == ["PushTaskOutput"]  # the bundle is not even fetched
    assert runtime.outputs == [("failed", FOREIGN)]
    assert owner.heard == []


def test_all_kinds_of_tasks_are_taken(owner):
    """One that nobody takes would wait for ever, and the questions behind it."""
    assert set(calls.ALL_TASKS) >= {"flwr-clientapp", "flwr-agentapp", "flwr-serverapp", "flwr-simulation"}


def test_a_name_is_told_only_where_there_are_no_keys(owner):
    who = asks(letters.asks_who(), letters.WHO)
    assert letters.name_of(answered(who, Door(owner.path, 20.0, "clinic a")).reply) == "clinic a"
    runtime = answered(asks(letters.asks_who(), letters.WHO), Door(owner.path, 20.0))
    assert runtime.reply.error.reason == FOREIGN
    assert owner.heard == []


# ---------------------------------------------------------------------- the bundle


def modules_after(statement):
    """What a new interpreter has imported then."""
    script = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_of_flower_nothing_is_imported_that_unpacks_or_runs_apps():
    """Nor torch: a site carries bytes. Whatever one imports of Flower, it imports its ClientApp; no more comes here."""
    found = modules_after("import prifedsync.engines.flower.site")
    assert "prifedsync.engines.flower.letters" in found
    assert _of(found, "torch", "flwr.cli", "flwr.supercore.task_process", "flwr.supernode") == set()
    more = found - modules_after("import flwr")
    assert _of(more, "flwr.client", "flwr.clientapp", "flwr.common.object_ref") == set()


def _of(modules, *packages):
    return {name for name in modules if any(f"{name}.".startswith(f"{package}.") for package in packages)}


SEEN = []
WATCHING = threading.Event()


RUNS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "exec", "compile", "os.mkdir", "os.rename"}


def _watch(event, arguments):
    """What the process writes, unpacks or runs while somebody watches."""
    if not WATCHING.is_set():
        return
    written = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
    if written or event in RUNS:
        SEEN.append((event, arguments[0]))


@pytest.fixture
def watched():
    if not getattr(sys, "_flower_site_is_watched", False):
        sys.addaudithook(_watch)
        sys._flower_site_is_watched = True
    SEEN.clear()
    yield WATCHING
    WATCHING.clear()


def test_the_bundle_is_never_written_unpacked_or_run(owner, watched, tmp_path):
    answered(question(), Door(owner.path, 20.0))  # what is imported at the first time is imported now
    watched.set()
    runtime = answered(question(), Door(owner.path, 20.0))
    assert SEEN == []
    assert not runtime.left(BUNDLE)
    (tmp_path / "file").write_bytes(b"")
    exec(compile("1", "<bundle>", "exec"))
    watched.clear()
    assert {event for event, _ in SEEN} == {"open", "compile", "exec"}  # they would have been seen


# ---------------------------------------------------------------------- one task after another


def carried(tasks, monkeypatch, door, more=lambda: None):
    """Let these tasks be carried; their runtimes."""
    over = threading.Event()
    waiting = list(tasks)
    seen = []

    class Waiting:
        def __init__(self, address, secret):
            assert (address, secret) == ("the address", b"the secret")

        def take(self):
            seen.append("take")
            more()
            if waiting:
                return waiting.pop(0)
            over.set()
            return None

        def close(self):
            seen.append("close")

    monkeypatch.setattr(site, "Tasks", Waiting)
    monkeypatch.setattr(site, "POLL", 0.01)
    monkeypatch.setattr(site, "AWAY", 0.01)
    carry("the address", b"the secret", door, over)
    assert seen[-1] == "close"
    return [task.client for task in tasks]


def test_an_error_in_one_task_does_not_end_the_others(owner, monkeypatch):
    empty = FakeRuntime()  # there is no message in it
    torn = FakeRuntime(question())
    torn.objects.clear()
    strange = FakeRuntime(question())
    name = next(iter(strange.objects))
    strange.objects[name] = b"Nonsense 0 0\0" + SECRET
    lost = FakeRuntime(question())
    lost.PushMessages = lambda request: _fail(httpx.ConnectError(SECRET.decode()))
    dead = FakeRuntime()
    dead.PullTaskInput = dead.PushTaskOutput = lambda request: _fail(httpx.ReadError(SECRET.decode()))
    good = FakeRuntime(question())
    runtimes = [empty, torn, strange, lost, dead, good]
    carried([task_of(each) for each in runtimes], monkeypatch, Door(owner.path, 20.0))
    assert letters.frame_of(good.reply) == ANSWER
    for runtime in (empty, torn, strange, lost):
        assert runtime.outputs == [("failed", UNREACHABLE)]
    for runtime in runtimes:
        assert runtime.calls[-1] == "close"
        assert not runtime.left(SECRET[:4])


def _fail(error):
    raise error


def test_a_task_that_cannot_be_closed_does_not_end_the_others(owner, monkeypatch):
    bad = FakeRuntime(question())
    bad.close = lambda: _fail(RuntimeError("the pool is in use"))
    good = FakeRuntime(question())
    carried([task_of(bad), task_of(good)], monkeypatch, Door(owner.path, 20.0))
    assert letters.frame_of(good.reply) == ANSWER


def test_a_supernode_that_is_away_or_talks_nonsense_is_waited_for(owner, monkeypatch):
    errors = [httpx.ConnectError("away"), ValueError("Invalid protobuf response payload"), httpx.ReadTimeout("slow")]
    runtime = FakeRuntime(question())
    carried([task_of(runtime)], monkeypatch, Door(owner.path, 20.0), lambda: errors and _fail(errors.pop()))
    assert letters.frame_of(runtime.reply) == ANSWER


def test_signs_of_life_are_sent_while_the_owner_works(owner, monkeypatch):
    monkeypatch.setattr(calls, "SECONDS_BETWEEN_HEARTBEATS", 0.01)
    runtime = FakeRuntime(question())
    fails = iter([httpx.ConnectError("once"), ValueError("and once")])
    real = runtime.SendTaskHeartbeat

    def beat(request):
        for error in fails:
            raise error
        return real(request)

    def works(sock, frame):
        end = time.monotonic() + 20.0
        while runtime.calls.count("SendTaskHeartbeat") < 3:
            assert time.monotonic() < end
            time.sleep(0.005)
        sock.sendall(ANSWER)

    runtime.SendTaskHeartbeat = beat
    owner.does = works
    answer(task_of(runtime), Door(owner.path, 30.0))
    assert letters.frame_of(runtime.reply) == ANSWER
    beats = runtime.calls.count("SendTaskHeartbeat")
    assert beats >= 3
    time.sleep(0.05)
    assert runtime.calls.count("SendTaskHeartbeat") == beats  # none after the end
