"""The pieces of a message, within a bound.

Whoever sends a message says how many pieces it has, how long each is, and how often an array repeats one: a few bytes may
stand for gigabytes. So all three are checked before memory is taken.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from itertools import islice

from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)

LEAST_PIECE = 2**16  # bytes of a piece of an array but the last; Flower's have 5 MiB
FEW = 64  # pieces of a message besides those of its arrays
MOST_OTHER = 2**20  # bytes of those
MOST_HEAD = 256  # bytes before those of the array, in one of its pieces
CHUNK = f"{ArrayChunk.__qualname__}{HEAD_VALUE_DIVIDER}".encode()
ARRAY = f"{Array.__qualname__}{HEAD_VALUE_DIVIDER}".encode()


class TooLarge(ValueError):
    """A message that is larger than any that may come."""


def names_of(tree: ObjectTree, most: int) -> list[str]:
    """The names of a message's pieces, each once. Its arrays may have so many bytes together."""
    allowed = most // LEAST_PIECE + FEW
    names = [each.object_id for each in islice(iterate_object_tree(tree), allowed + 1)]
    if len(names) > allowed:
        raise TooLarge(f"the message has more than {allowed} pieces")
    return list(dict.fromkeys(names))


class Within:
    """Fetches pieces until there are too many bytes of them."""

    def __init__(self, fetch: Callable[[str], bytes], names: int, most: int) -> None:
        self._fetch = fetch
        self._of_arrays = most + names * MOST_HEAD
        self._others = MOST_OTHER
        self._lock = threading.Lock()

    def __call__(self, name: str) -> bytes:
        piece = self._fetch(name)
        with self._lock:
            if piece.startswith(CHUNK):
                self._of_arrays -= len(piece)
            else:
                self._others -= len(piece)
            if min(self._of_arrays, self._others) < 0:
                raise TooLarge("the message has too many bytes")
        return piece


def check_unfolded(pieces: Mapping[str, bytes], most: int) -> None:
    """Refuse arrays that are longer than so many bytes together, once they are put together."""
    arrays = [piece for piece in pieces.values() if piece.startswith(ARRAY)]
    if sum(_unfolded_bytes(array, pieces) for array in arrays) > most:
        raise TooLarge("the arrays of the message have too many bytes")


def _unfolded_bytes(array: bytes, pieces: Mapping[str, bytes]) -> int:
    _, children, _ = get_object_head_values_from_object_content(array)
    sizes = [_chunk_bytes(pieces[child]) for child in children]
    repeated = json.loads(get_object_body(array, Array))["arraychunk_ids"]
    return sum(sizes[number] for number in repeated)


def _chunk_bytes(piece: bytes) -> int:
    """How many bytes of an array a piece has."""
    end = piece.find(HEAD_BODY_DIVIDER, 0, MOST_HEAD)
    if end < 0 or not piece.startswith(CHUNK):
        raise ValueError("an array is made of something else than its pieces")
    return len(piece) - end - len(HEAD_BODY_DIVIDER)
