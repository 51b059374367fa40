"""Frames on a socket: a whole frame within a given time, and no more memory than it may need."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from .frames import PREFIX, BadFrame, Lengths, read_prefix

CHUNK = 2**20  # bytes taken from the socket at once


class Gone(Exception):
    """The other side closed the socket, or was too slow."""


class Deadline:
    """The moment until which something on a socket must have happened."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def apply(self, sock: socket.socket) -> None:
        """Let the next operation on the socket take what is left of the time."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise Gone("the time is over")
        sock.settimeout(left)


def receive_lengths(sock: socket.socket, deadline: Deadline) -> Lengths:
    """The first bytes of a frame."""
    return read_prefix(receive(sock, PREFIX.size, deadline))


def receive(sock: socket.socket, length: int, deadline: Deadline) -> bytes:
    """Exactly so many bytes. Memory is taken as they come, not as they were announced."""
    found = bytearray()
    while len(found) < length:
        deadline.apply(sock)
        try:
            piece = sock.recv(min(CHUNK, length - len(found)))
        except OSError as error:  # a timeout is one
            raise Gone(f"nothing can be received: {error}") from None
        if not piece:
            raise Gone("the frame ends too early")
        found += piece
    return bytes(found)


def receive_frame(sock: socket.socket, deadline: Deadline, most: Callable[[bytes], int]) -> tuple[bytes, bytes]:
    """Header and body of a frame. `most` says how long the body may be after it was shown the header."""
    lengths = receive_lengths(sock, deadline)
    header = receive(sock, lengths.header, deadline)
    if lengths.body > most(header):
        raise BadFrame("the body is too long")
    return header, receive(sock, lengths.body, deadline)


def receive_raw(sock: socket.socket, deadline: Deadline, most: int) -> bytes:
    """A whole frame as it is, for whoever carries it on. Its body may have at most so many bytes."""
    prefix = receive(sock, PREFIX.size, deadline)
    lengths = read_prefix(prefix)
    if lengths.body > most:
        raise BadFrame("the body is too long")
    return prefix + receive(sock, lengths.header + lengths.body, deadline)


def send(sock: socket.socket, frame: bytes, deadline: Deadline) -> None:
    """The whole frame."""
    left = memoryview(frame)
    while left:
        deadline.apply(sock)
        try:
            left = left[sock.send(left) :]
        except OSError as error:
            raise Gone(f"nothing can be sent: {error}") from None
