"""The body of a frame: one vector as safetensors, checked by its header before anything of it is used."""

from __future__ import annotations

import json
from typing import Literal

from .frames import BadFrame

Kind = Literal["F32", "F64", "I64", "U32"]
ITEM = {"F32": 4, "F64": 8, "I64": 8, "U32": 4}  # bytes of a number
LENGTH = 8  # bytes that say how long the header is
ALIGNED = 8  # numbers begin at a multiple of so many bytes
MOST_HEADER = 512


def vector_bytes(name: str, kind: Kind, values: bytes | memoryview) -> bytes:
    """A vector as the body of a frame. Its length depends on name, kind and count alone."""
    return _header(name, kind, len(values) // ITEM[kind]) + bytes(values)


def body_bytes(name: str, kind: Kind, count: int) -> int:
    """The length of such a body."""
    return len(_header(name, kind, count)) + count * ITEM[kind]


def read_vector(body: bytes, name: str, kind: Kind, count: int) -> memoryview:
    """The numbers of a body that has exactly this vector, as bytes; anything else is a `BadFrame`."""
    if len(body) < LENGTH:
        raise BadFrame("the body is too short")
    length = int.from_bytes(body[:LENGTH], "little")
    if length > MOST_HEADER:
        raise BadFrame("the header of the tensor is too long")
    try:
        found = json.loads(body[LENGTH : LENGTH + length].decode())
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"the body is not safetensors: {error}") from None
    size = count * ITEM[kind]
    if found != _described(name, kind, count) or len(body) != LENGTH + length + size:
        raise BadFrame("the body is another tensor")
    return memoryview(body)[LENGTH + length :]


def _described(name: str, kind: Kind, count: int) -> dict[str, object]:
    return {name: {"dtype": kind, "shape": [count], "data_offsets": [0, count * ITEM[kind]]}}


def _header(name: str, kind: Kind, count: int) -> bytes:
    text = json.dumps(_described(name, kind, count), separators=(",", ":")).encode()
    text += b" " * (-(LENGTH + len(text)) % ALIGNED)
    return len(text).to_bytes(LENGTH, "little") + text
