"""One owner, asked over an exchange: questions of `asking` as frames, and back."""

from __future__ import annotations

import logging
from dataclasses import replace

from ...asking.connection import NoAnswer
from ...asking.frames import PREFIX, BadFrame, question_frame, read_answer, read_prefix
from ...asking.questions import TURNS, Accepted, Answered, Declined, Enrol, Question
from ...asking.refusals import Refusal
from .exchange import PAUSE, Exchange, Patience

BUSY = Declined(Refusal.BUSY)

log = logging.getLogger(__name__)


class Through:
    """One client's owner, over an exchange (`engines.owners.Seen`)."""

    def __init__(self, exchange: Exchange, name: str, patience: Patience) -> None:
        self._exchange = exchange
        self._name = name
        self._patience = patience
        self._turn = 0.0  # seconds after which the owner's answers leave, once it has said so

    @property
    def away(self) -> str:
        return self._exchange.away(self._name)

    @property
    def there(self) -> bool:
        return self._name in self._exchange.online

    def ask(self, question: Question) -> Answered:
        """The owner's answer, or `NoAnswer`. An owner that is busy is asked again.

        A copy of a question costs its owner a whole turn, and the next question waits for it. So none is sent while the
        owner may still be at it.
        """
        frame = question_frame(question)
        end = self._exchange.time() + self._patience.whole
        patience = replace(self._patience, first=max(self._patience.first, TURNS * self._turn))
        keeps = isinstance(question, Enrol)  # before that nobody knows how long the owner takes
        while True:
            left = replace(patience, whole=end - self._exchange.time())
            answered = _read(self._exchange.ask(self._name, frame, left, keeps))
            if answered != BUSY or self._exchange.time() + PAUSE >= end:
                break
            self._exchange.pause(PAUSE)
        if isinstance(answered, Accepted):
            self._note_turn(answered.seconds)
        return answered

    def _note_turn(self, seconds: float) -> None:
        """Say if waiting.question is too short: an enrolment, and a slot after a restart, is asked before this is known."""
        if seconds != self._turn and TURNS * seconds > self._patience.first:
            advice = "answers of client %s leave after %g s: set waiting.question in server.toml to at least %g"
            log.warning(advice, self._name, seconds, TURNS * seconds)
        self._turn = seconds


def _read(frame: bytes) -> Answered:
    try:
        lengths = read_prefix(frame[: PREFIX.size])
        end = PREFIX.size + lengths.header
        if len(frame) != end + lengths.body:
            raise BadFrame("the frame has another length than it says")
        return read_answer(frame[PREFIX.size : end], frame[end:])
    except BadFrame as error:
        raise NoAnswer(str(error)) from None
