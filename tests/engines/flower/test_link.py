"""The server's side of a SuperLink: answers are fetched one by one, and who sent them is what the SuperLink says."""

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, ErrorCode
from flwr.proto.control_pb2 import ListNodesResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from prifedsync.engines.flower import calls, letters, pieces
from prifedsync.engines.flower import link as links
from prifedsync.engines.flower.grid import UNREADABLE, Grid
from prifedsync.engines.flower.link import Closed, Link, NotTaken
from prifedsync.values import BadValue

from .faking import SUPERLINK, frame_of, identity
from .runtime import FakeRuntime, task_of

A, B = 101, 102
MOST = 2**20  # bytes of an answer


@pytest.fixture(autouse=True)
def _identity():
    identity()


@pytest.fixture
def runtime():
    return FakeRuntime(node=SUPERLINK)


@pytest.fixture
def link(runtime):
    made = Link(None, b"secret", dict)
    task = task_of(runtime)
    made._task = task
    made._grid = Grid(task, MOST)
    made._grid._run = type("Run", (), {"run_id": 7})()
    yield made
    made.close(True)


def question(node=A, name="question"):
    message = Message(letters.content_of(frame_of()), node, letters.TYPE, ttl=600.0)
    message.metadata.__dict__["_message_id"] = name
    return message


def reply(asked, frame=b"an answer"):
    return Message(letters.content_of(frame_of(frame, b"body")), reply_to=asked)


def arrived(link, sent=("question", "another"), count=1):
    """The answers that come within a while."""
    found = []
    end = time.monotonic() + 20.0
    while len(found) < count:
        assert time.monotonic() < end
        found += link.pull(sent)
        time.sleep(0.002)
    return found


def test_an_answer_comes_whole_and_once(link, runtime):
    runtime.add(reply(question()))
    (found,) = arrived(link)
    assert letters.frame_of(found) == frame_of(b"an answer", b"body")
    assert found.metadata.reply_to_message_id == "question"
    assert found.metadata.src_node_id == A
    assert len(runtime.confirmed) == 1
    assert list(link.pull(["question"])) == []


def test_a_message_in_the_name_of_another_is_that_of_its_sender(link, runtime):
    """Client b is asked, and its pieces say that they are a's answer to a's question."""
    forged = reply(question(A, "question"))
    runtime.add(forged, said=reply(question(B, "another")))
    (found,) = arrived(link)
    assert found.metadata.src_node_id == B
    assert found.metadata.reply_to_message_id == "another"


def test_errors_come_too(link, runtime):
    runtime.add(letters.refusal("a reason", question()))
    (found,) = arrived(link)
    assert (found.error.code, found.error.reason) == (letters.REFUSED, "a reason")


@pytest.mark.parametrize("damage", ["nonsense", "missing", "another class"])
def test_an_answer_that_cannot_be_read_hides_no_other(link, runtime, damage):
    bad = reply(question(A, "question"), b"bad")
    runtime.add(bad)
    for name in get_all_nested_objects(bad):
        if damage == "missing":
            runtime.objects[name] = None
        else:
            runtime.objects[name] = b"nonsense" if damage == "nonsense" else b"ConfigRecord  2\0{}"
    runtime.add(reply(question(B, "another"), b"good"))
    found = {each.metadata.reply_to_message_id: each for each in arrived(link, count=2)}
    assert letters.frame_of(found["another"]) == frame_of(b"good", b"body")
    assert found["question"].error.reason == UNREADABLE
    assert found["question"].error.code == ErrorCode.UNKNOWN


def test_an_answer_that_is_still_being_sent_holds_up_no_other(link, runtime, monkeypatch):
    monkeypatch.setattr(calls, "FIRST_LOOK", 0.005)
    slow = reply(question(A, "question"), b"slow")
    runtime.add(slow)
    later = {name: runtime.objects[name] for name in get_all_nested_objects(slow)}
    runtime.objects |= dict.fromkeys(later, b"")
    runtime.add(reply(question(B, "another"), b"fast"))
    (found,) = arrived(link)
    assert letters.frame_of(found) == frame_of(b"fast", b"body")
    pulled = runtime.calls.count("PullMessages")
    assert list(link.pull(["question"])) == []
    assert runtime.calls.count("PullMessages") == pulled  # a SuperLink would say that there is no such message any more
    runtime.objects |= later
    (found,) = arrived(link)
    assert letters.frame_of(found) == frame_of(b"slow", b"body")


def test_one_that_never_comes_is_given_up(link, runtime, monkeypatch):
    monkeypatch.setattr(calls, "FIRST_LOOK", 0.005)
    monkeypatch.setattr("prifedsync.engines.flower.grid.SECONDS_TO_FETCH", 0.05)
    torn = reply(question())
    runtime.add(torn)
    runtime.objects |= dict.fromkeys(get_all_nested_objects(torn), b"")
    (found,) = arrived(link)
    assert found.error.reason == UNREADABLE


def test_a_superlink_that_is_lost_in_between_is_noticed_and_hides_no_answer(link, runtime):
    runtime.add(reply(question(A, "question"), b"bad"))
    runtime.add(reply(question(B, "another"), b"good"))
    both = threading.Barrier(2)
    real = runtime.ConfirmMessageReceived
    first = iter([True])

    def confirm(request):
        both.wait(20.0)
        if next(first, False):
            raise httpx.ReadError("the SuperLink is gone")
        return real(request)

    runtime.ConfirmMessageReceived = confirm
    assert list(link.pull(["question", "another"])) == []
    until = time.monotonic() + 20.0
    while not all(each.done() for each in link._grid._coming.values()):
        assert time.monotonic() < until
        time.sleep(0.002)
    found = []
    with pytest.raises(httpx.ReadError):
        found.extend(_all(link.pull(["question", "another"]), found))
    assert len(found) == 1


def _all(messages, found):
    for each in messages:
        found.append(each)
    return []


def test_a_message_that_is_not_taken_is_no_lost_superlink(link, runtime):
    runtime.PushMessages = lambda request, real=runtime.PushMessages: _declined(real(request))
    with pytest.raises(NotTaken):
        link.push(question())
    assert not issubclass(NotTaken, calls.Failed)


def _declined(response):
    response.message_ids[:] = [""]
    return response


def test_threads_end_with_the_link(runtime):
    before = set(threading.enumerate())
    link = Link(None, b"secret", dict)
    link._task = task_of(runtime)
    link._grid = Grid(link._task, MOST)
    runtime.add(reply(question()))
    arrived(link)
    link.close(True)
    end = time.monotonic() + 20.0
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < end
        time.sleep(0.002)
    assert runtime.outputs == [("completed", "")]


@pytest.mark.filterwarnings("ignore:GitWildMatch:DeprecationWarning")  # inside Flower
def test_a_stopped_link_waits_for_no_superlink():
    class Nobody:
        def control(self):
            raise httpx.ConnectError("nobody is there")

    link = Link(Nobody(), b"secret", dict, keys=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(link.renew, 0)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        link.stop()
        with pytest.raises(Closed):
            waiting.result(timeout=5.0)


# ---------------------------------------------------------------------- a SuperLink that does not take what it is given


class Control:
    """Flower's interface for runs and nodes, which knows these nodes and does not take one key."""

    def __init__(self, refused="", nodes=()):
        self.refused = refused
        self.nodes = list(nodes)
        self.registered = []
        self.unregistered = []

    def ListNodes(self, request):
        return ListNodesResponse(nodes_info=self.nodes)

    def UnregisterNode(self, request):
        self.unregistered.append(request.node_id)

    def RegisterNode(self, request):
        if request.name == self.refused:
            answer = httpx.Response(409, text="Public key already in use", request=httpx.Request("POST", "http://link"))
            raise httpx.HTTPStatusError("409", request=answer.request, response=answer)
        self.registered.append(request.name)

    def StartRun(self, request):
        raise httpx.ConnectError("certificate verify failed")

    def close(self):
        pass


class Place:
    place = "127.0.0.1:9092"

    def __init__(self, control):
        self._control = control

    def control(self):
        return self._control


def public_line():
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def test_a_key_that_is_not_taken_keeps_no_other_client_away(caplog):
    roster = {name: public_line() for name in "abc"}
    control = Control(refused="b")
    Link(Place(control), b"secret", lambda: roster).enlist()
    assert control.registered == ["a", "c"]
    assert "does not take the key of client b" in caplog.text
    assert "already in use" in caplog.text


def test_a_superlink_that_never_takes_the_run_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(links, "SECONDS_TO_BEGIN", 0.3)
    link = Link(Place(Control(refused="")), b"secret", dict)
    with pytest.raises(BadValue, match="9092 does not take the run: certificate verify failed"):
        link.renew(0)


def test_one_that_took_it_before_is_waited_for(monkeypatch):
    monkeypatch.setattr(links, "SECONDS_TO_BEGIN", 0.0)
    link = Link(Place(Control(refused="")), b"secret", dict)
    link.submitted = 1
    threading.Timer(1.0, link.stop).start()
    with pytest.raises(Closed):
        link.renew(1)


def test_half_a_line_changes_nothing_until_it_is_whole():
    roster = {name: public_line() for name in "ab"}
    control = Control(refused="")
    link = Link(Place(control), b"secret", lambda: roster)
    link.enlist()
    whole, roster["b"] = roster["b"], roster["b"][:40]
    known = link._enlisted
    assert link._keys_now() == known
    roster["b"] = b""  # how a file comes that the server's user cannot read
    assert link._keys_now() == known
    for wrong in (b"ecdsa-sha2-nistp384", b"ssh-of-tomorrow AAAA"):
        roster["c"] = wrong
        assert link._keys_now() == known
    roster["b"] = whole
    roster["c"] = public_line()
    assert set(link._keys_now()) == {"a", "b", "c"}


def test_a_key_of_another_client_changes_nothing():
    """Somebody has put a line into the wrong file: the answers of one client would count for another."""
    roster = {name: public_line() for name in "ab"}
    link = Link(Place(Control(refused="")), b"secret", lambda: roster)
    link.enlist()
    known = link._enlisted
    for wrong, right in ("ab", "ba"):
        own, roster[wrong] = roster[wrong], roster[right] + b" with a comment"
        assert link._keys_now() == known
        roster[wrong] = own
    roster["c"] = roster["a"]
    assert link._keys_now() == known
    roster["c"] = public_line()
    assert set(link._keys_now()) == {"a", "b", "c"}


class Nothing:
    """Takes no task: the run was stopped before anybody could take it."""

    def __init__(self, address, secret):
        self.closed = False

    def take(self):
        return None

    def close(self):
        self.closed = True


def test_a_run_that_was_stopped_before_it_was_taken_is_submitted_again(monkeypatch):
    monkeypatch.setattr(links, "Tasks", Nothing)
    monkeypatch.setattr(links, "SECONDS_TO_TAKE", 0.2)
    started = []
    control = Control(refused="")
    control.StartRun = lambda request: started.append(1) or type("Run", (), {"run_id": 7})()
    link = Link(Place(control), b"secret", dict)
    link.submitted = 1
    threading.Timer(3.0, link.stop).start()
    with pytest.raises(Closed):
        link.renew(1)
    assert len(started) > 1


def test_an_error_of_the_superlink_is_not_taken_for_a_refused_key():
    control = Control(refused="")

    def fails(request):
        answer = httpx.Response(503, request=httpx.Request("POST", "http://link"))
        raise httpx.HTTPStatusError("503", request=answer.request, response=answer)

    control.RegisterNode = fails
    with pytest.raises(httpx.HTTPStatusError):
        Link(Place(control), b"secret", lambda: {"a": public_line()}).enlist()


# ---------------------------------------------------------------------- keys that a stranger registered


def pem(line):
    """A key as the SuperLink has it from us."""
    key = serialization.load_ssh_public_key(line)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def node(number, key, name=""):
    return NodeInfo(node_id=number, public_key=key, status="registered", name=name)


STRANGER = pem(public_line())
ODD = {
    "an empty line before": b"\n" + STRANGER,
    "a text before": b"hello\n" + STRANGER,
    "a text after": STRANGER + b"hello\n",
    "no key": b"\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("key", ODD.values(), ids=ODD)
def test_a_key_of_a_stranger_in_an_odd_writing_is_unregistered(key):
    """Flower stores whatever of it can be read as a key, as it came."""
    roster = {"a": public_line()}
    control = Control(nodes=[node(5, key), node(6, pem(roster["a"]))])
    Link(Place(control), b"secret", lambda: roster).enlist()
    assert control.unregistered == [5]
    assert control.registered == []


def test_a_client_s_key_in_another_writing_is_not_the_client():
    """A SuperNode proves the key as it is written, so the client could not come with that one."""
    roster = {"a": public_line()}
    control = Control(nodes=[node(5, b"\n" + pem(roster["a"]))])
    Link(Place(control), b"secret", lambda: roster).enlist()
    assert control.unregistered == [5]
    assert control.registered == ["a"]


def test_who_cannot_be_unregistered_keeps_nobody_away(caplog):
    roster = {"a": public_line()}
    control = Control(nodes=[node(5, ODD["a text before"], "x\n" * 1000), node(6, STRANGER)])

    def fails(request):
        if request.node_id == 5:
            answer = httpx.Response(404, request=httpx.Request("POST", "http://link"))
            raise httpx.HTTPStatusError("404", request=answer.request, response=answer)
        control.unregistered.append(request.node_id)

    control.UnregisterNode = fails
    link = Link(Place(control), b"secret", lambda: roster)
    link.enlist()
    assert control.unregistered == [6]
    assert control.registered == ["a"]
    assert set(link._enlisted) == {"a"}
    assert all("\n" not in record.getMessage() and len(record.getMessage()) < 1000 for record in caplog.records)


def test_a_node_with_an_odd_key_is_nobody_and_hides_nobody(link):
    roster = {"a": public_line()}
    link._roster = lambda: roster
    link._enlisted = {"a": pem(roster["a"])}
    nodes = [node(5, ODD["a text before"]), node(6, b"\n" + pem(roster["a"])), node(7, pem(roster["a"]))]
    link._grid.get_nodes = lambda: nodes
    assert link.online() == {"a": 7}


def test_a_line_that_is_no_key_is_reported_once(link, caplog):
    roster = {"a": public_line()}
    link._roster = lambda: roster
    link._enlisted = {"a": pem(roster["a"])}
    roster["a"] = roster["a"][:20]
    for _ in range(3):
        assert link._keys_now() == link._enlisted
    assert caplog.text.count("the key of client a cannot be read, is none, or is another client's") == 1


def test_keys_of_two_clients_are_exchanged_by_copies():
    """In between, one key is in both files, and the other in none: a SuperLink would not take that one again."""
    lines = {"a": public_line(), "b": public_line()}
    steps = [lines, lines | {"a": lines["b"]}, {"a": lines["b"], "b": lines["a"]}]
    control = Control(nodes=[node(at, pem(line)) for at, line in enumerate(lines.values())])
    link = Link(Place(control), b"secret", lambda: steps[0])
    link.enlist()
    while len(steps) > 1:
        steps.pop(0)
        link.enlist()
    assert control.unregistered == control.registered == []
    assert link._enlisted == {"a": pem(lines["b"]), "b": pem(lines["a"])}


def test_two_who_enlist_at_once_do_not_undo_each_other():
    """The roster changes between them: whoever has the old one must not unregister the new key, which is then lost."""
    old = {"a": public_line()}
    new = {"b": public_line()}
    rosters = [old, new]
    control = Control()
    first = threading.Event()
    go = threading.Event()

    def list_nodes(request):
        if not first.is_set():
            first.set()
            go.wait(1.0)
        return ListNodesResponse(nodes_info=control.nodes)

    def register(request):
        control.nodes.append(node(len(control.nodes) + 1, request.public_key, request.name))

    control.ListNodes = list_nodes
    control.RegisterNode = register
    control.UnregisterNode = lambda request: control.unregistered.append(control.nodes[request.node_id - 1].name)
    link = Link(Place(control), b"secret", lambda: rosters.pop(0))
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(link.enlist)
        first.wait(5.0)
        other = pool.submit(link.enlist)
        time.sleep(0.2)
        go.set()
        one.result()
        other.result()
    assert control.unregistered == ["a"]
    assert set(link._enlisted) == {"b"}


# ---------------------------------------------------------------------- a run that cannot be submitted again at once


@pytest.fixture
def submitting(monkeypatch):
    """A link whose run has begun; `then` are what happens when it is submitted, in turn."""

    def made(then, submitted=1):
        link = Link(Place(Control()), b"secret", dict)
        link.submitted = submitted

        def submit():
            error = then.pop(0) if then else None
            if error is not None:
                raise error

        link._submit = submit
        return link

    return made


WRONG = [ValueError("Invalid line format"), OSError("too many open files"), RuntimeError("the client has been closed")]


def test_a_run_that_has_begun_is_submitted_again_whatever_is_wrong(submitting, caplog):
    link = submitting([*WRONG, WRONG[-1], httpx.ConnectError("away")])
    assert link.renew(1)
    assert link.submitted == 2
    said = [record.getMessage() for record in caplog.records if "submitted again" in record.getMessage()]
    assert len(said) == len(WRONG)  # the same thing is said once


@pytest.mark.parametrize("error", WRONG, ids=lambda error: type(error).__name__)
def test_a_run_that_never_began_says_at_once_what_is_wrong(submitting, error):
    with pytest.raises(type(error)):
        submitting([error], submitted=0).renew(0)


def test_a_run_that_is_over_is_over_whatever_the_superlink_says(runtime):
    def fails(request):
        raise ValueError("Invalid protobuf response payload")

    runtime.PushTaskOutput = fails
    link = Link(None, b"secret", dict)
    link._task = task_of(runtime)
    link.close(True)
    assert runtime.calls == ["close"]


def test_a_link_that_is_stopped_is_not_submitted_again_whatever_is_wrong(submitting):
    link = submitting([ValueError("Invalid line format")] * 10_000)
    threading.Timer(0.3, link.stop).start()
    with pytest.raises(Closed):
        link.renew(1)


def test_a_task_that_cannot_be_begun_is_closed(monkeypatch, runtime):
    task = task_of(runtime, kind="flwr-serverapp")

    def fails(request):
        raise httpx.ReadError("the SuperLink is gone")

    runtime.PullTaskInput = fails
    monkeypatch.setattr(Nothing, "take", lambda self: task)
    monkeypatch.setattr(links, "Tasks", Nothing)
    with pytest.raises(httpx.ReadError):
        Link(Place(Control()), b"secret", dict)._take(task.run)
    assert runtime.calls == ["close"]


# ---------------------------------------------------------------------- answers that are too large


def answer_of(size, name="question", node=A):
    return Message(letters.content_of(frame_of(b"an answer", os.urandom(size))), reply_to=question(node, name))


def test_an_answer_of_the_largest_size_comes(link, runtime):
    size = MOST - len(frame_of(b"an answer"))
    runtime.add(answer_of(size))
    (found,) = arrived(link)
    assert len(letters.frame_of(found)) == MOST


def test_a_larger_answer_is_none_before_it_fills_the_memory(link, runtime):
    runtime.add(answer_of(100 * MOST))
    runtime.add(reply(question(B, "another"), b"good"))
    found = {each.metadata.reply_to_message_id: each for each in arrived(link, count=2)}
    assert found["question"].error.reason == UNREADABLE
    assert letters.frame_of(found["another"]) == frame_of(b"good", b"body")
    assert sum(runtime.handed) < 2 * MOST + 4 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE


def test_an_answer_of_many_small_pieces_is_not_even_fetched(link, runtime):
    runtime.add(reply(question()))
    tree = runtime.waiting[0][1]
    for number in range(MOST // pieces.LEAST_PIECE + pieces.FEW):
        tree.children.add().object_id = hashlib.sha256(str(number).encode()).hexdigest()
    (found,) = arrived(link)
    assert found.error.reason == UNREADABLE
    assert runtime.handed == []


def test_an_answer_that_repeats_a_piece_is_not_put_together(link, runtime, together):
    """A few kilobytes that stand for sixty gigabytes."""
    piece = b"ArrayChunk  524288\0" + bytes(2**19)
    forge(runtime, array_of(piece, times=120_000), piece)
    (found,) = arrived(link)
    assert found.error.reason == UNREADABLE
    assert together == []


def test_an_array_of_arrays_is_not_put_together(link, runtime, together):
    """Its pieces are arrays that repeat a piece themselves."""
    piece = b"ArrayChunk  256\0" + bytes(2**8)
    inner = array_of(piece, times=2000)
    forge(runtime, array_of(inner, times=100_000), inner, piece)
    (found,) = arrived(link)
    assert found.error.reason == UNREADABLE
    assert together == []


def test_a_piece_that_is_repeated_a_little_is_put_together(link, runtime, together):
    piece = b"ArrayChunk  256\0" + bytes(2**8)
    forge(runtime, array_of(piece, times=3), piece)
    (found,) = arrived(link)
    assert len(letters.frame_of(found)) == 3 * 256
    assert len(together) == 1


@pytest.fixture
def together(monkeypatch):
    """What was put together."""
    seen = []
    real = calls.inflate_object_from_contents

    def put(name, pieces):
        seen.append(name)
        return real(name, pieces)

    monkeypatch.setattr(calls, "inflate_object_from_contents", put)
    return seen


def name_of_piece(content):
    return hashlib.sha256(content).hexdigest()


def array_of(piece, times):
    """An array that is one piece, again and again."""
    numbers = [0] * times
    body = json.dumps({"dtype": "uint8", "shape": [1], "stype": letters.KIND, "arraychunk_ids": numbers}).encode()
    return f"Array {name_of_piece(piece)} {len(body)}\0".encode() + body


def forge(runtime, array, *others):
    """An answer whose frame is this array, made of these other pieces."""
    asked = question()
    honest = Message(letters.content_of(frame_of()), reply_to=asked)
    runtime.add(honest)
    announced, tree = runtime.waiting.pop()
    whole = [tree]
    while whole[-1].children:
        whole.append(whole[-1].children[0])
    message, content, record, old, _ = [each.object_id for each in whole]
    made = ObjectTree(object_id=name_of_piece(array))
    runtime.objects[made.object_id] = array
    below = made
    for piece in others:
        below = below.children.add(object_id=name_of_piece(piece))
        runtime.objects[below.object_id] = piece
    for above in (record, content, message):
        changed = runtime.objects[above].replace(old.encode(), made.object_id.encode())
        old = above
        made = ObjectTree(object_id=name_of_piece(changed), children=[made])
        runtime.objects[made.object_id] = changed
    announced.metadata.message_id = made.object_id
    runtime.waiting.append((announced, made))


def test_a_long_text_beside_the_arrays_is_not_read(link, runtime):
    content = letters.content_of(frame_of())
    content["text"] = ConfigRecord({"text": "x" * (pieces.MOST_OTHER + 1)})
    runtime.add(Message(content, reply_to=question()))
    (found,) = arrived(link)
    assert found.error.reason == UNREADABLE


def test_what_is_wrong_with_an_answer_is_one_short_line_of_the_log(link, runtime, caplog):
    bad = reply(question())
    runtime.add(bad)
    for name in get_all_nested_objects(bad):
        runtime.objects[name] = b"x\n" * 10_000 + b" 1 0\0"
    assert arrived(link)[0].error.reason == UNREADABLE
    (record,) = [each for each in caplog.records if "cannot be read" in each.getMessage()]
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 500


def test_a_response_that_is_too_long_is_not_read(monkeypatch):
    """And is no lost SuperLink: the message is bad, and not the way to it."""
    monkeypatch.setattr(calls, "MOST_RESPONSE", 1000)

    class Long(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("content-length", "1001")
            self.end_headers()
            self.wfile.write(bytes(1001))

    server = HTTPServer(("127.0.0.1", 0), Long)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    client = calls.Address(f"127.0.0.1:{server.server_port}").runtime()
    try:
        with pytest.raises(pieces.TooLarge) as raised:
            client.PullObject(PullObjectRequest(object_id="x"))
        assert not isinstance(raised.value, calls.Failed)
    finally:
        client.close()
        thread.join()
        server.server_close()
