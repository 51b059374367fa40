"""All questions that are under way over one link, and the answers to them.

Each question is asked by a thread of its own, which waits. One more thread looks for answers to all of them. Where an
answer does not come, the question is sent again: an owner has stored what it answered, so that costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from flwr.app import Message

from ...asking.connection import NoAnswer
from ...asking.frames import PREFIX, BadFrame, question_frame, read_answer, read_prefix
from ...asking.questions import Answered, Declined, Question
from ...asking.refusals import Refusal
from . import letters
from .calls import Failed
from .link import Closed, Link

POLL = 0.1  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks at who is there
BEAT = 10.0  # seconds between two signs of life to the SuperLink
PAUSE = 1.0  # seconds until a question is sent again that a site could not have answered
SLOWEST = 1e6  # bytes a second at which a question and its answer travel at least, over all hops
SHORT = 5.0  # seconds that a client is waited for which was not there the last time either
MOST_LOST = 30  # times that a question is sent again because the SuperLink was not there
SECONDS_FOR_A_NAME = 60.0
MOST_SAID = 200  # characters of an error
BUSY = Declined(Refusal.BUSY)
NOT_THERE = "its SuperNode is not there"
LINK_LOST = "the SuperLink was not there"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long a question is waited for."""

    whole: float  # seconds for all tries together
    first: float  # seconds until it is sent again, besides those to travel; each further wait is twice as long
    offline: float  # seconds, of a client that is not there or whose site cannot reach its owner


@dataclass
class _Try:
    """A question that was sent once."""

    node: int
    came: threading.Event = field(default_factory=threading.Event)
    answer: bytes | None = None
    wrong: str = ""  # why there is no answer


@dataclass
class UnderWay:
    """A question that a client has not answered yet."""

    since: float  # unix time
    tries: int = 0
    wrong: str = ""  # what became of the last try


class Exchange:
    """A context manager: threads look for answers while it is open."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._tries: dict[str, _Try] = {}
        self._some = threading.Event()  # there are questions under way
        self._over = threading.Event()
        self._beaten = clock()
        self._there: dict[str, int] = {}  # clients whose SuperNodes are there
        self._names: dict[int, str] = {}  # clients by their SuperNodes, where there are no keys to know them by
        self._who: dict[str, int] = {}  # questions for names
        self._gone: set[str] = set()  # clients that were waited for in vain
        self.waited_for: dict[str, UnderWay] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(work,), name=work.__name__, daemon=True)
            for work in (self._look_for_answers, self._look_who_is_there)
        ]

    def __enter__(self) -> Exchange:
        self._link.renew(0)
        self._notice()
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Nobody waits for an answer any more."""
        self._over.set()
        self._some.set()
        for one in list(self._tries.values()):
            one.came.set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._link.close(done=kind is None)
        for thread in self._threads:
            thread.join(timeout=PAUSE)

    @property
    def online(self) -> set[str]:
        """The clients whose SuperNodes are there."""
        return set(self._there)

    @property
    def registered(self) -> set[str]:
        """The clients that have a key here."""
        return set(self._link.roster)

    # ------------------------------------------------------------------ one question

    def ask(self, name: str, frame: bytes, patience: Patience) -> bytes:
        """The frame with which a client answers, or `NoAnswer`."""
        now = self.waited_for[name] = UnderWay(time.time())
        try:
            return self._asked(name, frame, patience, now)
        finally:
            del self.waited_for[name]

    def _asked(self, name: str, frame: bytes, patience: Patience, now: UnderWay) -> bytes:
        end = self._clock() + patience.whole
        most = min(SHORT, patience.offline) if name in self._gone else patience.offline
        unheard = 0.0  # seconds in which nobody can have worked on it
        lost = 0
        wait = patience.first + len(frame) / SLOWEST
        while (left := end - self._clock()) > 0:
            self._check_open()
            begun = self._clock()
            node = self._there.get(name)
            if node is None:
                now.wrong = NOT_THERE
                self._over.wait(min(LOOK, left))
                unheard += self._clock() - begun
            else:
                now.tries += 1
                one = self._sent(node, frame, min(wait, left))
                if one.answer is not None:
                    self._gone.discard(name)
                    return one.answer
                now.wrong = one.wrong
                if one.wrong == LINK_LOST:  # no fault of the client's
                    lost += 1
                    self._over.wait(PAUSE)
                elif one.wrong:
                    self._over.wait(PAUSE)
                    unheard += self._clock() - begun
                else:  # it may still be worked on
                    wait = min(2 * wait, patience.whole)
            if unheard >= most:
                self._gone.add(name)
                break
            if lost >= MOST_LOST:  # it may be the question that the SuperLink does not take
                break
        raise NoAnswer(now.wrong or "it did not answer in time")

    def _sent(self, node: int, frame: bytes, seconds: float) -> _Try:
        """One try, with what came of it within so many seconds."""
        one = _Try(node)
        seen = self._link.submitted
        try:
            sent = self._link.push(Message(letters.content_of(frame), node, letters.TYPE, ttl=seconds))
        except Failed:
            self._renew(seen)
            one.wrong = LINK_LOST
            return one
        self._tries[sent] = one
        if self._link.submitted != seen:  # it was sent over a link that is gone
            one.came.set()
        self._some.set()
        one.came.wait(seconds)
        self._tries.pop(sent, None)
        return one

    def _check_open(self) -> None:
        if self._over.is_set():
            raise NoAnswer("the run is over")

    # ------------------------------------------------------------------ answers, and who is there

    def _keep(self, work: Callable[[], None]) -> None:
        """Do this again and again. Where the SuperLink is not there, or does not know the run, it is submitted again."""
        while not self._over.is_set():
            seen = self._link.submitted
            try:
                work()
            except Failed:
                self._renew(seen)
            except Exception:  # of Flower, about one message: the others must go on
                log.exception("answers could not be looked for")
                self._over.wait(PAUSE)

    def _look_for_answers(self) -> None:
        wanted = (*self._tries, *self._who)
        if not wanted:
            self._some.wait(LOOK)
            self._some.clear()
            return
        for message in self._link.pull(wanted):
            self._came(message)
        self._over.wait(POLL)

    def _came(self, message: Message) -> None:
        """Give an answer to whoever waits for it."""
        to = message.metadata.reply_to_message_id
        if to in self._who:
            self._called(self._who.pop(to), message)
        one = self._tries.get(to)
        if one is None:
            return
        if message.has_error():
            one.wrong = _said(message)
        elif message.metadata.src_node_id != one.node:
            one.wrong = "another SuperNode answered in its place"
        else:
            try:
                one.answer = letters.frame_of(message)
            except letters.BadLetter as error:
                one.wrong = str(error)
        one.came.set()

    def _look_who_is_there(self) -> None:
        """And show the SuperLink that the run goes on."""
        self._notice()
        if self._clock() - self._beaten >= BEAT:
            self._beaten = self._clock()
            if not self._link.beat():
                self._renew(self._link.submitted)
        self._over.wait(LOOK)

    def _notice(self) -> None:
        nodes = self._link.online()
        if self._link.keys:
            self._there = nodes
            return
        for node in nodes.values():
            if node not in self._names and node not in self._who.values():
                self._who[self._link.push(Message(letters.asks_who(), node, letters.WHO, ttl=SECONDS_FOR_A_NAME))] = node
        self._some.set()
        self._there = {self._names[node]: node for node in nodes.values() if node in self._names}

    def _called(self, node: int, message: Message) -> None:
        """Note a client's name. Where a site does not tell it, it is asked again."""
        with suppress(letters.BadLetter):
            self._names[node] = letters.name_of(message)

    def _renew(self, seen: int) -> None:
        """Submit the run again. What was sent before is lost, and whoever waits for an answer sends its question again."""
        with suppress(Closed):
            self._link.renew(seen)
            self._there = {}
        self._who.clear()
        for one in list(self._tries.values()):
            one.wrong = LINK_LOST
            one.came.set()


def _said(message: Message) -> str:
    """What an error says; at most a line of it, since anybody may have written it."""
    return f"error {message.error.code}: {(message.error.reason or '')[:MOST_SAID]!r}"


class Through:
    """One client's owner, over an exchange (`engines.owners.Asked`)."""

    def __init__(self, exchange: Exchange, name: str, patience: Patience) -> None:
        self._exchange = exchange
        self._name = name
        self._patience = patience

    def ask(self, question: Question) -> Answered:
        """The owner's answer, or `NoAnswer`. An owner that is busy is asked again."""
        frame = question_frame(question)
        until = time.monotonic() + self._patience.whole
        while True:
            answered = _read(self._exchange.ask(self._name, frame, self._patience))
            if answered != BUSY or time.monotonic() >= until:
                return answered
            time.sleep(PAUSE)


def _read(frame: bytes) -> Answered:
    try:
        lengths = read_prefix(frame[: PREFIX.size])
        end = PREFIX.size + lengths.header
        if len(frame) != end + lengths.body:
            raise BadFrame("the frame has another length than it says")
        return read_answer(frame[PREFIX.size : end], frame[end:])
    except BadFrame as error:
        raise NoAnswer(str(error)) from None
