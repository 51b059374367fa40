"""Frames: what is written is read, and whatever else comes is refused by one exception."""

import json
import socket
import threading
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from prifedsync.asking.frames import (
    MAGIC,
    MOST_HEADER,
    PREFIX,
    BadFrame,
    answer_frame,
    question_frame,
    read_answer,
    read_prefix,
    read_question,
)
from prifedsync.asking.questions import VERSION, Accepted, Answer, Declined, Enrol, Head, Introduction, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.asking.transfer import Deadline, Gone, receive_frame, send
from prifedsync.asking.vectors import body_bytes, read_vector, vector_bytes

RUN = "0123456789abcdef" * 2
HEAD = Head(7, bytes(range(32)))
INTRODUCED = Introduction("hospital-a", b"k" * 32, b"s" * 64)
QUESTIONS = [
    Enrol("é", {"clients": [{"client": "é"}], "x": 0.1}, b"\x01\x02"),
    Enrol("a", {}),
    Answer("a", RUN, 3, 1, b"body", ("a", "b"), b"session", (INTRODUCED,), HEAD),
    Answer("a", RUN, 0, 0, b""),
]
ANSWERS = [
    Accepted(HEAD, 4, 0.25, INTRODUCED),
    Accepted(HEAD, 0, 10.0),
    Reply("sent", HEAD, 38, b"\0\1\2", {"accuracy": 0.5, "auc": None}),
    Reply("absent", HEAD, 0, b"\0\1\2"),
    *map(Declined, Refusal),
]


def parts(frame):
    lengths = read_prefix(frame[: PREFIX.size])
    header = frame[PREFIX.size : PREFIX.size + lengths.header]
    body = frame[PREFIX.size + lengths.header :]
    assert len(body) == lengths.body
    return header, body


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_read_as_they_were_asked(question):
    header, body = parts(question_frame(question))
    found = read_question(header)
    assert not getattr(found, "helper", b"")
    if isinstance(question, Answer):
        assert body == question.helper
        object.__setattr__(found, "helper", body)
    assert found == question


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_read_as_they_were_given(answer):
    assert read_answer(*parts(answer_frame(answer))) == answer


def test_replies_of_one_run_have_one_length():
    """Whatever a reply says of its status, its count, its scores or the ledger: its length is the same."""
    frames = [
        answer_frame(Reply("sent", HEAD, 38, bytes(100), {"accuracy": 0.123456789012345})),
        answer_frame(Reply("absent", Head(2**40, bytes(32)), 0, bytes(100), {"accuracy": None})),
        answer_frame(Reply("sent", Head(0, bytes(32)), 10**9, bytes(100))),
    ]
    assert len({len(frame) for frame in frames}) == 1
    declined = {len(answer_frame(Declined(refusal))) for refusal in Refusal}
    assert len(declined) == 1


def enrolment(document: bytes = b"{}", session: bytes = b'""', question: bytes = b'"enrol"', more: bytes = b"") -> bytes:
    """The JSON of an enrolment that is right but for what is given."""
    form = b'{"version":%d,"question":%b,"client":"a","document":%b,"session":%b%b}'
    return form % (VERSION, question, document, session, more)


BAD_HEADERS = {
    "nothing": b"",
    "not UTF-8": enrolment(b'"\xff"'),
    "not JSON": b"{",
    "a pickle": b"\x80\x04\x95.",
    "a list": b"[]",
    "no version": b'{"question":"enrol","client":"a","document":{},"session":""}',
    "a version that is true": b'{"version":true,"question":"enrol","client":"a","document":{},"session":""}',
    "an unknown key": enrolment(more=b',"path":"/etc/passwd"'),
    "a key twice": enrolment(more=b',"session":""'),
    "a key twice inside": enrolment(b'{"a":1,"a":2}'),
    "a key that is missing": enrolment().replace(b',"session":""', b""),
    "nobody's name": enrolment().replace(b',"client":"a"', b""),
    "NaN": enrolment(b'{"x":NaN}'),
    "infinity": enrolment(b'{"x":-Infinity}'),
    "1e999": enrolment(b'{"x":1e999}'),
    "a huge integer": enrolment(b'{"x":9223372036854775808}'),
    "5,000 digits": enrolment(b'{"x":' + b"9" * 5000 + b"}"),
    "deep": enrolment(b'{"a":' * 17 + b"1" + b"}" * 17),
    "very deep": b"[" * 10**6,
    "half a surrogate": enrolment(b'{"x":"\\ud800"}'),
    "a third question": enrolment(question=b'"read"'),
    "a document that is text": enrolment(b'"x"'),
    "a session in capitals": enrolment(session=b'"AB"'),
    "a long session": enrolment(session=b'"' + b"ab" * 65 + b'"'),
}


def test_the_header_that_bad_ones_are_made_of_is_a_question():
    assert read_question(enrolment()) == Enrol("a", {})


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_is_not_a_question_is_malformed(header):
    with pytest.raises(BadFrame) as refused:
        read_question(header)
    assert refused.value.refusal is Refusal.MALFORMED


GOOD = json.loads(parts(question_frame(QUESTIONS[2]))[0])
WRONG = {
    "client": [None, 1, ["a"], "x" * 257],
    "run": ["", "../../etc/passwd", RUN[:-1], RUN.upper(), 3, None],
    "round": [-1, 1.0, True, "1", None, 2**63],
    "attempt": [-1, 0.0, False, [], None],
    "clients": ["ab", {}, [1], ["x" * 257], None],
    "session": [None, 1, "0", "zz"],
    "introductions": [None, {}, [[]], [{"name": "a"}], [{"name": "a", "key": "", "signature": "", "run": ""}]],
    "head": [[], [1], [1, "ab", 2], {"number": 1}, [-1, "ab"], [1, 2], "ab"],
}


@pytest.mark.parametrize("key", WRONG)
def test_every_key_of_a_question_has_its_type(key):
    read_question(json.dumps(GOOD).encode())
    for value in WRONG[key]:
        with pytest.raises(BadFrame):
            read_question(json.dumps({**GOOD, key: value}).encode())


def test_another_version_is_refused_as_such():
    with pytest.raises(BadFrame) as refused:
        read_question(json.dumps({**GOOD, "version": VERSION + 1, "something": "new"}).encode())
    assert refused.value.refusal is Refusal.VERSION


def test_lengths_are_refused_before_anything_is_read():
    assert read_prefix(PREFIX.pack(MAGIC, MOST_HEADER, 10**10)) == (MOST_HEADER, 10**10)
    for prefix in (PREFIX.pack(MAGIC, MOST_HEADER + 1, 0), PREFIX.pack(b"PFS2", 1, 0), b"PFS1", b""):
        with pytest.raises(BadFrame):
            read_prefix(prefix)


def test_only_a_reply_has_a_body():
    header, _ = parts(answer_frame(ANSWERS[0]))
    with pytest.raises(BadFrame, match="only a reply"):
        read_answer(header, b"x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content):
    for read in (read_prefix, read_question, lambda b: read_answer(b, b""), lambda b: read_vector(b, "helper", "F32", 3)):
        try:
            read(content)
        except BadFrame:
            continue


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(GOOD)), JSON)
def test_any_value_in_a_key_is_read_or_refused(key, value):
    header = json.dumps({**GOOD, key: value}).encode()
    with suppress(BadFrame):
        assert json.loads(parts(question_frame(read_question(header)))[0]) == {**GOOD, key: value}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_any_byte_of_a_frame_may_be_changed(at, value):
    frame = bytearray(question_frame(QUESTIONS[2]))
    frame[at % len(frame)] = value
    with suppress(BadFrame):
        lengths = read_prefix(bytes(frame[: PREFIX.size]))
        read_question(bytes(frame[PREFIX.size : PREFIX.size + lengths.header]))


# ---------------------------------------------------------------------- vectors

KINDS = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U32": np.uint32}


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_safetensors(kind):
    values = np.arange(5).astype(KINDS[kind])
    body = vector_bytes("helper", kind, values.tobytes())
    assert len(body) == body_bytes("helper", kind, 5)
    assert np.array_equal(load(body)["helper"], values)
    for each in (body, save({"helper": values})):
        assert np.array_equal(np.frombuffer(read_vector(each, "helper", kind, 5), KINDS[kind]), values)


def test_a_vector_that_is_another_is_refused():
    values = np.ones(5, np.float32)
    bodies = [
        save({"helper": values.astype(np.float64)}),
        save({"helper": values[:4]}),
        save({"helper": values.reshape(1, 5)}),
        save({"other": values}),
        save({"helper": values, "other": values}),
        save({"helper": values}, {"path": "x"}),
        save({"helper": values}) + b"\0",
        save({"helper": values})[:-1],
        b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os.",
        (2**62).to_bytes(8, "little") + bytes(100),
        b"",
    ]
    for body in bodies:
        with pytest.raises(BadFrame):
            read_vector(body, "helper", "F32", 5)


# ---------------------------------------------------------------------- on a socket


def test_a_frame_on_a_socket_is_read_whole():
    here, there = socket.socketpair()
    frame = answer_frame(Reply("sent", HEAD, 1, bytes(5 * 2**20)))
    sender = threading.Thread(target=send, args=(there, frame, Deadline(10)))
    sender.start()
    header, body = receive_frame(here, Deadline(10), lambda _: 5 * 2**20)
    sender.join()
    assert isinstance(read_answer(header, body), Reply)
    here.close(), there.close()


def test_a_frame_that_ends_early_or_comes_slowly_is_gone():
    frame = question_frame(QUESTIONS[2])
    for cut in (0, 3, PREFIX.size, len(frame) - 1):
        here, there = socket.socketpair()
        there.sendall(frame[:cut])
        there.close()
        with pytest.raises(Gone):
            receive_frame(here, Deadline(5), lambda _: 100)
        here.close()
    here, there = socket.socketpair()
    there.sendall(frame[:-1])
    with pytest.raises(Gone):
        receive_frame(here, Deadline(0.05), lambda _: 100)
    here.close(), there.close()


def test_a_body_beyond_its_limit_is_not_read():
    here, there = socket.socketpair()
    there.sendall(question_frame(QUESTIONS[2]))
    with pytest.raises(BadFrame, match="too long"):
        receive_frame(here, Deadline(5), lambda _: 3)
    here.close(), there.close()
