"""Frames as Flower's messages: they come out as they went in, a body for many is sent once, and nothing else is a frame."""

import random

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.asking.frames import BadFrame
from prifedsync.engines.flower import letters
from prifedsync.engines.flower.letters import BODY, CLIENT, HEADER, KIND, RECORD, BadLetter

from .faking import frame_of, identity

NODE = 101


@pytest.fixture(autouse=True)
def _identity():
    identity()


def question(content, kind=letters.TYPE, node=NODE):
    return Message(content, node, kind)


def travelled(message):
    """The message after Flower cut it into pieces and put them together again, in the order of its tree."""
    contents = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    named = {each.object_id for each in iterate_object_tree(get_object_tree(message))}
    assert named == set(contents)
    return inflate_object_from_contents(message.object_id, contents)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_frame_comes_out_as_it_went_in(header, body):
    identity()
    frame = frame_of(header, body)
    message = question(letters.content_of(frame))
    assert letters.frame_of(message) == frame
    assert letters.frame_of(travelled(message)) == frame


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_also_one_that_is_cut(size):
    frame = frame_of(b"header", bytes(size - 1) + b"x")
    arrived = travelled(question(letters.content_of(frame)))
    assert letters.frame_of(arrived) == frame


def test_a_reply_is_a_letter_too():
    asked = question(letters.content_of(frame_of(b"question", b"helper")))
    asked.metadata.__dict__["_message_id"] = "its number"
    reply = travelled(Message(letters.content_of(frame_of(b"reply", b"upload")), reply_to=asked))
    assert letters.frame_of(reply) == frame_of(b"reply", b"upload")
    assert reply.metadata.reply_to_message_id == "its number"


def test_one_body_for_many_clients_is_uploaded_once():
    body = random.Random(1).randbytes(2 * CHUNK + 3)
    messages = [question(letters.content_of(frame_of(name, body)), node=NODE + at) for at, name in enumerate([b"a", b"b"])]
    first, second = (get_all_nested_objects(each) for each in messages)
    shared = [len(first[name].deflate()) for name in first.keys() & second.keys()]
    apart = [len(first[name].deflate()) for name in first.keys() - second.keys()]
    assert sum(shared) > len(body)
    assert sum(apart) < 2000


def test_a_text_that_is_no_frame_is_never_sent():
    with pytest.raises(BadFrame):
        letters.content_of(b"no frame at all, whatever its length")


def array(kind=KIND, data=b"bytes"):
    return Array("uint8", (len(data),), kind, data)


def record(**arrays):
    return RecordDict({RECORD: ArrayRecord(arrays)})


GOOD = {HEADER: array(), BODY: array()}
FOREIGN = {
    "nothing": RecordDict({}),
    "another name": RecordDict({"arrays": ArrayRecord(GOOD)}),
    "one more record": RecordDict({RECORD: ArrayRecord(GOOD), "config": ConfigRecord({})}),
    "a config": RecordDict({RECORD: ConfigRecord({HEADER: b"bytes"})}),
    "metrics": RecordDict({RECORD: MetricRecord({HEADER: 1})}),
    "no array": record(),
    "no header": record(**{BODY: array()}),
    "another array": record(**{HEADER: array(), "more": array()}),
    "one more array": record(**GOOD, more=array()),
    "a NumPy array": record(**{HEADER: array("numpy.ndarray")}),
    "a NumPy body": record(**{HEADER: array(), BODY: array("numpy.ndarray")}),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_frame_is_refused(content):
    message = question(content)
    for each in (message, travelled(message)):
        with pytest.raises(BadLetter):
            letters.frame_of(each)


@pytest.mark.parametrize("kind", ["train", "query", "query.prifedsync_who", "query.prifedsync2"])
def test_a_message_of_another_type_is_refused(kind):
    content = letters.content_of(frame_of())
    assert letters.frame_of(question(content)) == frame_of()
    with pytest.raises(BadLetter, match="another program"):
        letters.frame_of(question(content, kind))


def test_an_error_is_no_frame_and_no_name():
    asked = question(letters.content_of(frame_of()))
    for error in (Message(Error(2, "a reason"), reply_to=asked), letters.refusal("a reason", asked)):
        with pytest.raises(BadLetter):
            letters.frame_of(error)
        with pytest.raises(BadLetter):
            letters.name_of(error)


def test_names():
    assert letters.name_of(travelled(question(letters.says_who("clinic a"), letters.WHO))) == "clinic a"


@pytest.mark.parametrize(
    "content",
    [
        *FOREIGN.values(),
        letters.asks_who(),
        letters.content_of(frame_of()),
        RecordDict({RECORD: ConfigRecord({CLIENT: 5})}),
        RecordDict({RECORD: ConfigRecord({CLIENT: b"a"})}),
        RecordDict({RECORD: ConfigRecord({CLIENT: ["a"]})}),
        RecordDict({RECORD: ConfigRecord({"name": "a"})}),
        RecordDict({"another": ConfigRecord({CLIENT: "a"})}),
    ],
)
def test_what_is_no_name_is_refused(content):
    with pytest.raises(BadLetter):
        letters.name_of(question(content, letters.WHO))
