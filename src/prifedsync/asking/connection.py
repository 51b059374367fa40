"""The asker's side of an owner's socket."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from ..values import BadValue
from .frames import BadFrame, question_frame, read_answer
from .questions import Answered, Question
from .transfer import Deadline, Gone, receive_frame, send

MOST_BODY = 2**34  # bytes of a reply: a model of 4·10⁹ parameters
SECONDS_TO_SEND = 30.0
SECONDS_TO_WAIT = 3600.0


class NoAnswer(Exception):
    """The owner cannot be reached, closed the socket, or sent what is no answer. Asking again is harmless."""


class Connection:
    """Asks one owner. Each question has a socket of its own, so that nothing is left over from the one before."""

    def __init__(self, path: str | Path, wait: float = SECONDS_TO_WAIT, most_body: int = MOST_BODY) -> None:
        self.path = str(path)
        self.wait = wait
        self.most_body = most_body

    def ask(self, question: Question) -> Answered:
        """The owner's answer, or `NoAnswer`."""
        frame = question_frame(question)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            self._connect(sock)
            try:
                header, body = self._exchange(sock, frame)
                return read_answer(header, body)
            except (Gone, BadFrame) as error:
                raise NoAnswer(str(error)) from None

    def _connect(self, sock: socket.socket) -> None:
        sock.settimeout(SECONDS_TO_SEND)
        try:
            sock.connect(self.path)
        except OSError as error:
            if "too long" in str(error):
                raise BadValue("socket", self.path, "is too long for a Unix socket", "use a shorter path") from None
            raise NoAnswer(f"{self.path} cannot be reached: {error}") from None

    def _exchange(self, sock: socket.socket, frame: bytes) -> tuple[bytes, bytes]:
        with suppress(Gone):  # an owner that declines early does not read the rest; what it said can still be read
            send(sock, frame, Deadline(SECONDS_TO_SEND))
        return receive_frame(sock, Deadline(self.wait), lambda _: self.most_body)
