"""Vectors of a run as bodies of frames: which name and type each has, and tensors from and to bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from .document import RunDocument
from .frames import MOST_HEADER, PREFIX
from .vectors import Kind, body_bytes, read_vector, vector_bytes

HELPER = "helper"
UPLOAD = "upload"
MESSAGE = "message"
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}
KINDS: dict[torch.dtype, Kind] = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint32: "U32",
}


def reply_of(document: RunDocument) -> tuple[str, torch.dtype]:
    """What the body of a reply holds: a model, integers of a sum, or masked words."""
    if not document.summed:
        return UPLOAD, DTYPES[document.arithmetic]
    return MESSAGE, torch.uint32 if document.masks else torch.int64


def most_answer_bytes(document: RunDocument, count: int) -> int:
    """The longest frame that answers a question of this run, with `count` weights."""
    name, dtype = reply_of(document)
    return PREFIX.size + MOST_HEADER + packed_bytes(name, dtype, count)


def packed(name: str, vector: Tensor) -> bytes:
    """A vector as the body of a frame."""
    return vector_bytes(name, KINDS[vector.dtype], vector.detach().cpu().contiguous().numpy().tobytes())


def unpacked(body: bytes, name: str, dtype: torch.dtype, count: int) -> Tensor:
    """The vector of a body; whatever is not exactly this name, type and length is a `BadFrame`."""
    return torch.frombuffer(bytearray(read_vector(body, name, KINDS[dtype], count)), dtype=dtype)


def packed_bytes(name: str, dtype: torch.dtype, count: int) -> int:
    """How long such a body is."""
    return body_bytes(name, KINDS[dtype], count)
