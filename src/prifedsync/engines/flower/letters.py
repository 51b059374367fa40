"""Frames as Flower's messages, and back. A frame travels as one array of bytes, which Flower sends in pieces."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

RECORD = "prifedsync"
FRAME = "frame"
KIND = "prifedsync.frame"  # of the array: its bytes are a frame of `asking`
TYPE = "query.prifedsync"  # of a message
REFUSED = 1000  # code of an error reply


class BadLetter(ValueError):
    """A message that carries no frame."""


def content_of(frame: bytes) -> RecordDict:
    """What a message with this frame contains."""
    array = Array("uint8", (len(frame),), KIND, frame)
    return RecordDict({RECORD: ArrayRecord({FRAME: array})})


def frame_of(message: Message) -> bytes:
    """The frame that a message carries, and nothing else."""
    if not message.has_content():
        raise BadLetter("the message has no content")
    content = message.content
    if message.metadata.message_type != TYPE or set(content) != {RECORD}:
        raise BadLetter("the message is of another program")
    record = content[RECORD]
    if not isinstance(record, ArrayRecord) or set(record) != {FRAME} or record[FRAME].stype != KIND:
        raise BadLetter("the message carries no frame")
    return record[FRAME].data


def refusal(reason: str, question: Message) -> Message:
    """An error in the place of an answer. `reason` is a constant: it leaves the site as it stands."""
    return Message(Error(REFUSED, reason), reply_to=question)
