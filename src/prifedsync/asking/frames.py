"""Questions and answers as bytes. Both sides read what the other one sent as if it came from an enemy.

    frame    magic "PFS1", u32 length of the header, u64 length of the body (little endian), header, body
    header   a JSON object with known keys
    body     safetensors: the helper of a question, or what a reply carries; `vectors.py` reads it

Whatever is not such a frame raises `BadFrame`, and nothing else. Lengths are checked before memory is taken.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from .questions import VERSION, Accepted, Answer, Answered, Declined, Enrol, Head, Introduction, Question, Reply
from .refusals import Refusal

MAGIC = b"PFS1"
PREFIX = struct.Struct("<4sIQ")
MOST_HEADER = 8 * 2**20
MOST_DEPTH = 16  # of nested objects and lists
MOST_TEXT = 256  # characters of a name
MOST_KEY = 64  # bytes of a session, a key, a signature or a hash
MOST_NUMBER = 2**63 - 1
RUN_DIGITS = 32
BLOCK = 1024  # headers of replies are filled up to whole blocks, so that their length tells nothing of what they say
STATUS: dict[str, Literal["sent", "absent"]] = {"sent": "sent", "absent": "absent"}

T = TypeVar("T")


class BadFrame(ValueError):
    """Bytes that are not a frame. Its refusal is what an owner declines them with."""

    def __init__(self, why: str, refusal: Refusal = Refusal.MALFORMED) -> None:
        super().__init__(why)
        self.refusal = refusal


class Lengths(NamedTuple):
    """What a frame announces before it comes."""

    header: int
    body: int


def read_prefix(prefix: bytes) -> Lengths:
    """The lengths of a frame from its first bytes. The length of the body is for the caller to judge."""
    if len(prefix) != PREFIX.size:
        raise BadFrame("the frame ends in its first bytes")
    magic, header, body = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadFrame("the frame does not begin with its magic")
    if header > MOST_HEADER:
        raise BadFrame("the header is too long")
    return Lengths(header, body)


def _frame(header: Mapping[str, Any], body: bytes = b"", block: int = 1) -> bytes:
    text = json.dumps({"version": VERSION, **header}, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % block)
    if len(text) > MOST_HEADER:
        raise BadFrame("the header is too long")
    return PREFIX.pack(MAGIC, len(text), len(body)) + text + body


# ---------------------------------------------------------------------- questions


def question_frame(question: Question) -> bytes:
    """A question as it is sent."""
    if isinstance(question, Enrol):
        enrol = {"question": "enrol", "client": question.client}
        return _frame({**enrol, "document": question.document, "session": question.session.hex()})
    header = {
        "question": "answer",
        "client": question.client,
        "run": question.run,
        "round": question.round,
        "attempt": question.attempt,
        "clients": list(question.clients),
        "session": question.session.hex(),
        "introductions": [_introduction_json(each) for each in question.introductions],
        "head": None if question.head is None else _head_json(question.head),
    }
    return _frame(header, question.helper)


def read_question(header: bytes) -> Question:
    """The question that a header asks, without its helper, which is the body."""
    said = _Keys(_json_of(header))
    kind = said.take("question", _text)
    if kind == "enrol":
        question: Question = Enrol(
            client=said.take("client", _text),
            document=said.take("document", _object),
            session=said.take("session", _bytes),
        )
    elif kind == "answer":
        question = Answer(
            client=said.take("client", _text),
            run=said.take("run", _run),
            round=said.take("round", _count),
            attempt=said.take("attempt", _count),
            helper=b"",
            clients=said.take("clients", _list_of(_text)),
            session=said.take("session", _bytes),
            introductions=said.take("introductions", _list_of(_introduction)),
            head=said.take("head", _optional(_head)),
        )
    else:
        raise BadFrame("there are two questions, and this is neither")
    said.end()
    return question


# ---------------------------------------------------------------------- answers


def answer_frame(answered: Answered) -> bytes:
    """An answer as it is sent. All frames of replies to one run have one length."""
    if isinstance(answered, Declined):
        return _frame({"answer": "declined", "refusal": answered.refusal.name}, block=BLOCK)
    if isinstance(answered, Accepted):
        introduction = answered.introduction
        accepted = {
            "answer": "accepted",
            "head": _head_json(answered.head),
            "first_round": answered.first_round,
            "seconds": answered.seconds,
            "introduction": None if introduction is None else _introduction_json(introduction),
        }
        return _frame(accepted, block=BLOCK)
    reply = {
        "answer": "reply",
        "status": answered.status,
        "head": _head_json(answered.head),
        "queries": answered.queries,
        "scores": dict(answered.scores),
    }
    return _frame(reply, answered.body, BLOCK)


def read_answer(header: bytes, body: bytes) -> Answered:
    """The answer of a frame."""
    said = _Keys(_json_of(header))
    kind = said.take("answer", _text)
    if kind == "declined":
        answered: Answered = Declined(said.take("refusal", _one_of(Refusal.__members__)))
    elif kind == "accepted":
        answered = Accepted(
            head=said.take("head", _head),
            first_round=said.take("first_round", _count),
            seconds=said.take("seconds", _seconds),
            introduction=said.take("introduction", _optional(_introduction)),
        )
    elif kind == "reply":
        answered = Reply(
            status=said.take("status", _one_of(STATUS)),
            head=said.take("head", _head),
            queries=said.take("queries", _count),
            body=body,
            scores=said.take("scores", _scores),
        )
    else:
        raise BadFrame("there are three answers, and this is none of them")
    said.end()
    if body and not isinstance(answered, Reply):
        raise BadFrame("only a reply has a body")
    return answered


def _head_json(head: Head) -> list[int | str]:
    return [head.number, head.hash.hex()]


def _introduction_json(introduction: Introduction) -> dict[str, str]:
    return {"name": introduction.name, "key": introduction.key.hex(), "signature": introduction.signature.hex()}


# ---------------------------------------------------------------------- reading JSON


class _Keys:
    """The keys of a JSON object, each taken once; one that is missing or left over is refused."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._left = dict(found)

    def take(self, key: str, read: Callable[[Any], T]) -> T:
        if key not in self._left:
            raise BadFrame(f"the header has no {key}")
        return read(self._left.pop(key))

    def end(self) -> None:
        if self._left:
            raise BadFrame("the header has keys that nobody knows")


def _json_of(header: bytes) -> dict[str, Any]:
    """The header as an object of this version, without its version."""
    try:
        text = header.decode()
        found = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite)
    except BadFrame:
        raise
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8, and numbers of 4,300 digits
        raise BadFrame(f"the header is not JSON: {error}") from None
    _check_values(found, MOST_DEPTH)
    if not isinstance(found, dict):
        raise BadFrame("the header is not an object")
    version = found.pop("version", None)
    if type(version) is not int:
        raise BadFrame("the header has no version")
    if version != VERSION:
        raise BadFrame("the frame is of another version", Refusal.VERSION)
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadFrame("a key is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise BadFrame(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadFrame("a number is too large")
    return value


def _check_values(value: Any, depth: int) -> None:
    """No nesting beyond `depth`, no text that UTF-8 cannot hold, no huge integers."""
    if depth < 0:
        raise BadFrame("the header is nested too deeply")
    if isinstance(value, dict):
        for key, each in value.items():
            _check_values(key, depth)
            _check_values(each, depth - 1)
    elif isinstance(value, list):
        for each in value:
            _check_values(each, depth - 1)
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadFrame("a text is not Unicode")
    elif isinstance(value, int) and abs(value) > MOST_NUMBER:
        raise BadFrame("an integer is too large")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise BadFrame("a name is not a short text")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadFrame("a value is not an object")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise BadFrame("a value is not a count")
    return value


def _bytes(value: Any) -> bytes:
    text = _text(value)
    if len(text) % 2 or len(text) > 2 * MOST_KEY or not set(text) <= set("0123456789abcdef"):
        raise BadFrame("a value is not bytes in hexadecimal")
    return bytes.fromhex(text)


def _run(value: Any) -> str:
    if len(_bytes(value)) != RUN_DIGITS // 2:
        raise BadFrame("a run is named by 32 hexadecimal digits")
    return str(value)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or value < 0:
        raise BadFrame("a value is not a number of seconds")
    return float(value)


def _scores(value: Any) -> dict[str, float | None]:
    scores = _object(value)
    for name, score in scores.items():
        _text(name)
        if score is not None and type(score) not in (int, float):
            raise BadFrame("a score is not a number")
    return {name: None if score is None else float(score) for name, score in scores.items()}


def _head(value: Any) -> Head:
    if not isinstance(value, list) or len(value) != 2:
        raise BadFrame("a head is a number and a hash")
    return Head(_count(value[0]), _bytes(value[1]))


def _introduction(value: Any) -> Introduction:
    said = _Keys(_object(value))
    read = Introduction(said.take("name", _text), said.take("key", _bytes), said.take("signature", _bytes))
    said.end()
    return read


def _optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else read(value)


def _list_of(read: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    def reading(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise BadFrame("a value is not a list")
        return tuple(read(each) for each in value)

    return reading


def _one_of(members: Mapping[str, T]) -> Callable[[Any], T]:
    def reading(value: Any) -> T:
        if not isinstance(value, str) or value not in members:
            raise BadFrame("a value is none of those that are known")
        return members[value]

    return reading
