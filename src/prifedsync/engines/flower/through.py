"""One owner, asked over an exchange: questions of `asking` as frames, and back."""

from __future__ import annotations

from dataclasses import replace

from ...asking.connection import NoAnswer
from ...asking.frames import PREFIX, BadFrame, question_frame, read_answer, read_prefix
from ...asking.questions import Answered, Declined, Question
from ...asking.refusals import Refusal
from .exchange import PAUSE, Exchange, Patience

BUSY = Declined(Refusal.BUSY)


class Through:
    """One client's owner, over an exchange (`engines.owners.Seen`)."""

    def __init__(self, exchange: Exchange, name: str, patience: Patience) -> None:
        self._exchange = exchange
        self._name = name
        self._patience = patience

    @property
    def away(self) -> str:
        return self._exchange.away(self._name)

    @property
    def there(self) -> bool:
        return self._name in self._exchange.online

    def ask(self, question: Question) -> Answered:
        """The owner's answer, or `NoAnswer`. An owner that is busy is asked again."""
        frame = question_frame(question)
        end = self._exchange.time() + self._patience.whole
        while True:
            left = replace(self._patience, whole=end - self._exchange.time())
            answered = _read(self._exchange.ask(self._name, frame, left))
            if answered != BUSY or self._exchange.time() + PAUSE >= end:
                return answered
            self._exchange.pause(PAUSE)


def _read(frame: bytes) -> Answered:
    try:
        lengths = read_prefix(frame[: PREFIX.size])
        end = PREFIX.size + lengths.header
        if len(frame) != end + lengths.body:
            raise BadFrame("the frame has another length than it says")
        return read_answer(frame[PREFIX.size : end], frame[end:])
    except BadFrame as error:
        raise NoAnswer(str(error)) from None
