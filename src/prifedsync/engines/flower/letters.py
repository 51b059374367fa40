"""Frames as Flower's messages, and back.

A frame travels as two arrays of bytes, its header and its body. Flower cuts arrays into pieces that are named by their
digest, so a body that many clients are sent goes to the SuperLink once.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from ...asking.frames import PREFIX, read_prefix

TYPE = "query.prifedsync"  # of a message that carries a frame
WHO = "query.prifedsync_who"  # of one that asks for a client's name, where there are no keys to know it by
RECORD = "prifedsync"
CLIENT = "client"
HEADER = "header"
BODY = "body"
KIND = "prifedsync.frame"  # of the arrays: their bytes are a part of a frame
REFUSED = 1000  # code of an error in the place of an answer


class BadLetter(ValueError):
    """A message that carries no frame."""


def content_of(frame: bytes) -> RecordDict:
    """What a message with this frame contains."""
    end = PREFIX.size + read_prefix(frame[: PREFIX.size]).header
    parts = {HEADER: _array(frame[:end])}
    if len(frame) > end:
        parts[BODY] = _array(frame[end:])
    return RecordDict({RECORD: ArrayRecord(parts)})


def frame_of(message: Message) -> bytes:
    """The frame that a message carries, and nothing else. Whether it is a good one is for its reader to say."""
    if not message.has_content():
        raise BadLetter("the message has no content")
    content = message.content
    if message.metadata.message_type != TYPE or set(content) != {RECORD}:
        raise BadLetter("the message is of another program")
    record = content[RECORD]
    if not isinstance(record, ArrayRecord) or set(record) not in ({HEADER}, {HEADER, BODY}):
        raise BadLetter("the message carries no frame")
    if any(array.stype != KIND for array in record.values()):
        raise BadLetter("the message carries other arrays")
    return b"".join(record[name].data for name in (HEADER, BODY) if name in record)


def asks_who() -> RecordDict:
    """A question for the client's name."""
    return RecordDict({RECORD: ConfigRecord({})})


def says_who(client: str) -> RecordDict:
    """Its answer."""
    return RecordDict({RECORD: ConfigRecord({CLIENT: client})})


def name_of(message: Message) -> str:
    """The client's name in such an answer."""
    record = message.content.get(RECORD) if message.has_content() else None
    name = record.get(CLIENT) if isinstance(record, ConfigRecord) else None
    if not isinstance(name, str):
        raise BadLetter("the message has no name")
    return name


def refusal(reason: str, question: Message) -> Message:
    """An error in the place of an answer. `reason` is a constant: it leaves the site as it stands."""
    return Message(Error(REFUSED, reason), reply_to=question)


def _array(part: bytes) -> Array:
    return Array("uint8", (len(part),), KIND, part)
