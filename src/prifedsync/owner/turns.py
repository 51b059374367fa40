"""One question after another, and when each answer leaves.

An answer leaves a fixed time after its turn began, whatever the work took. A turn begins when the question is there and the
answer before it has left. So the moments at which answers leave are a function of the moments of questions and of the
policy, and a question that waits for the training of another one tells nothing of how long that took. An answer that is not
ready in time leaves at the next multiple, which the owner finds in the log and in `owner status`.

Work leaves traces in a machine: a process that has just trained for long finds other things in its caches, and is some
microseconds faster or slower to take a question or to send. 200 rounds were enough to see that. So whoever sends is awake
for a while before the moment, nobody else is awake then, and the moment has a secret random part, a tenth of the time at
most, beside which such traces are small.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from ..asking.frames import answer_frame
from ..asking.questions import Answer, Question
from .desk import Desk
from .log import OwnerLog

PIPE = 65536  # bytes that a pipe holds
RANDOM = 0.1  # the largest random part, as a share of the time
AWAKE = 0.003  # seconds that the sender is awake before its moment
ASLEEP = 0.005  # seconds after that moment in which nothing else is done


@dataclass(frozen=True)
class Asked:
    """A question, who asks, and when it was there. `answer` gets its answer, which leaves at a given moment."""

    question: Question
    by: str
    at: float = field(default_factory=time.monotonic)
    answer: SimpleQueue[Leaving] = field(default_factory=SimpleQueue)


@dataclass(frozen=True)
class Leaving:
    """An answer, and when it leaves."""

    frame: bytes
    at: float

    def wait(self) -> None:
        """Wait for the moment, the last of it awake."""
        time.sleep(max(0.0, self.at - AWAKE - time.monotonic()))
        while time.monotonic() < self.at:
            continue


def chance() -> float:
    """A secret number in [0, 1)."""
    return int.from_bytes(os.urandom(7), "little") / 2**56


def leaving(begun: float, ready: float, seconds: float) -> float:
    """The earliest moment: so many seconds after the turn began, or the first multiple at which the answer is ready."""
    if seconds == 0:
        return ready
    return begun + seconds * max(1, math.ceil((ready - begun) / seconds))


class Turns:
    """Takes questions from all connections, in the thread that calls `serve_one`.

    That thread waits on a pipe, never on a lock: a signal that another thread receives would not end a wait for a lock.
    """

    def __init__(self, desk: Desk, log: OwnerLog) -> None:
        self._desk = desk
        self._log = log
        self._inbox: SimpleQueue[Asked] = SimpleQueue()
        self._free = -math.inf  # when the last answer left
        self._ended = False
        self.idle = threading.Event()  # no question is worked on, and no answer waits for its moment
        self.idle.set()
        self._woken, self.waker = os.pipe()  # whoever writes a byte to the waker wakes this thread
        for end in (self._woken, self.waker):
            os.set_blocking(end, False)

    def put(self, asked: Asked) -> None:
        """One more question, from any thread."""
        self._inbox.put(asked)
        self._wake()

    def end(self) -> None:
        """End after the work in hand. An answer that waits for its moment is not sent: it is stored."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so the thread is woken already
            os.write(self.waker, b"\0")

    def _wait(self, seconds: float | None) -> None:
        """Wait until something happens, or for so long."""
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, PIPE)

    def serve_one(self) -> bool:
        """Take one question, or none if somebody writes to the waker; False at the end."""
        if self._inbox.empty() and not self._ended:
            self._wait(None)
        if not self._ended and not self._inbox.empty():
            self.idle.clear()
            self._take(self._inbox.get())
            self.idle.set()
        return not self._ended

    def _take(self, asked: Asked) -> None:
        begun = max(asked.at, self._free)
        seconds = self._desk.policy.replies.seconds
        frame = answer_frame(self._desk.decide(asked.question, asked.by))
        ready = time.monotonic()
        leave = leaving(begun, ready, seconds) + RANDOM * seconds * chance()
        asked.answer.put(Leaving(frame, leave))
        self._free = leave
        if seconds:
            self._sleep_until(leave + ASLEEP)
        if seconds and leave > begun + 1.5 * seconds:
            self._note_late(asked, ready - begun, seconds)

    def _sleep_until(self, moment: float) -> None:
        while not self._ended and (left := moment - time.monotonic()) > 0:
            self._wait(left)

    def _note_late(self, asked: Asked, took: float, seconds: float) -> None:
        self._log.warning(f"an answer was ready after {took:.3f} s, later than replies.seconds = {seconds:g}")
        if isinstance(asked.question, Answer):
            self._desk.note_late(asked.question.run)
