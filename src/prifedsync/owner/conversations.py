"""One thread a connection: it reads one question, waits for its turn, and sends the answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from ..asking.frames import BadFrame, answer_frame, read_question
from ..asking.questions import Answer, Declined, Question
from ..asking.refusals import Refusal
from ..asking.transfer import Deadline, Gone, receive, receive_lengths, send
from .listening import peer_user, user_name
from .log import OwnerLog
from .turns import Asked

MOST_CONNECTIONS = 16
SECONDS_FOR_A_FRAME = 30.0
LONG_HEADER = 2**16  # bytes: the JSON of a longer one takes much memory, and so there is one at a time


class Conversations:
    """All connections of a daemon. `users` may ask; others are closed without a word."""

    def __init__(
        self,
        users: frozenset[int],
        helper_bytes: Mapping[str, int],
        put: Callable[[Asked], None],
        idle: threading.Event,
        log: OwnerLog,
    ) -> None:
        self.users = users
        self._helper_bytes = helper_bytes  # by run; another thread fills it
        self._put = put
        self._idle = idle
        self._log = log
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._long_header = threading.Lock()

    def accept(self, listener: socket.socket) -> None:
        """Accept one connection, in a thread of its own."""
        connection, _ = listener.accept()
        user = peer_user(connection)
        if user not in self.users:
            self._log.warning(f"user {user} is not one who may ask")
            connection.close()
        elif not self._places.acquire(blocking=False):
            self._say(connection, Declined(Refusal.BUSY))
            connection.close()
        else:
            threading.Thread(target=self._converse, args=(connection, user_name(user)), daemon=True).start()

    def _converse(self, connection: socket.socket, by: str) -> None:
        try:
            with connection, ExitStack() as until_the_end:
                self._serve(connection, by, until_the_end)
        except Exception:
            self._log.exception("a connection failed")
        finally:
            self._places.release()

    def _serve(self, connection: socket.socket, by: str, until_the_end: ExitStack) -> None:
        try:
            question = self._receive(connection, until_the_end)
        except BadFrame as error:
            self._log.info(f"a frame of {by} is refused: {error}")
            self._say(connection, Declined(error.refusal))
            return
        except Gone as error:
            self._log.info(f"a frame of {by} did not come: {error}")
            return
        asked = Asked(question, by)
        self._put(asked)
        leaving = asked.answer.get()
        leaving.wait()
        self._send(connection, leaving.frame)

    def _receive(self, connection: socket.socket, until_the_end: ExitStack) -> Question:
        deadline = Deadline(SECONDS_FOR_A_FRAME)
        lengths = receive_lengths(connection, deadline)
        if lengths.header > LONG_HEADER:
            if not self._long_header.acquire(blocking=False):
                raise BadFrame("another long header is being read", Refusal.BUSY)
            until_the_end.callback(self._long_header.release)
        question = read_question(receive(connection, lengths.header, deadline))
        if not isinstance(question, Answer):
            if lengths.body:
                raise BadFrame("this question has no body")
            return question
        most = self._helper_bytes.get(question.run)
        if most is None:
            return question  # the desk declines it, and nobody needs its body
        if lengths.body > most:
            raise BadFrame("the body is longer than a helper of this run", Refusal.HELPER)
        return replace(question, helper=receive(connection, lengths.body, deadline))

    def _say(self, connection: socket.socket, declined: Declined) -> None:
        """Decline what never came to the desk: that depends on the frame alone. While the desk works it waits, for how fast
        an answer comes beside a training would tell how long the training takes."""
        self._idle.wait()
        self._send(connection, answer_frame(declined))

    def _send(self, connection: socket.socket, frame: bytes) -> None:
        try:
            send(connection, frame, Deadline(SECONDS_FOR_A_FRAME))
        except Gone as error:
            self._log.info(f"an answer could not be sent: {error}")
