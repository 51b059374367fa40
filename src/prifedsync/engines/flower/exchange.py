"""All questions that are under way over one link, and the answers to them.

Each question is asked by a thread of its own, which waits. One more thread looks for answers to all of them. Where an
answer does not come, the question is sent again: an owner has stored what it answered, so that costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from flwr.app import Message

from ...asking.connection import NoAnswer
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
# Flower keeps a question so much longer than it is waited for: one that expired looks like a client's fault.
LONGER = 60.0
MOST_SAID = 200  # characters of an error
NOT_THERE = "its SuperNode is not there"
NOT_SENT = "the question could not be sent"
LINK_LOST = "the SuperLink was not there"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long a question is waited for."""

    whole: float  # seconds for all tries together
    first: float  # seconds until it is sent again, besides those to travel; each further wait is twice as long
    offline: float  # seconds, of a client that is not there or whose site cannot reach its owner


class _Asked:
    """A question, and what came back. An answer to any of its tries will do: it was the same question."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.answer: bytes | None = None
        self.wrong = ""  # why the last try has no answer
        self.last: _Try | None = None

    def begin(self, one: _Try) -> None:
        """Wait for this try now."""
        self.last = one
        self.wrong = ""
        self.came.clear()
        if self.answer is not None:  # it came just now
            self.came.set()


@dataclass(frozen=True)
class _Try:
    """A question that was sent once."""

    asked: _Asked
    node: int
    link: int  # how often the run had been submitted

    def answered(self, frame: bytes) -> None:
        if self.asked.answer is None:
            self.asked.answer = frame
        self.asked.came.set()

    def failed(self, wrong: str) -> None:
        """Nobody will answer it. Of an earlier try that says nothing about the last one."""
        if self.asked.last is self:
            self.asked.wrong = self.asked.wrong or wrong
            self.asked.came.set()


@dataclass(frozen=True)
class _Who:
    """A question for a client's name."""

    node: int
    link: int  # how often the run had been submitted
    until: float  # when it is given up


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
        self._lost = 0  # the last link that is known to be lost, by how often the run had been submitted
        self._some = threading.Event()  # there are questions under way
        self._over = threading.Event()
        self._beaten = clock()
        self._there: dict[str, int] = {}  # clients whose SuperNodes are there
        self._names: dict[int, str] = {}  # clients by their SuperNodes, where there are no keys to know them by
        self._who: dict[str, _Who] = {}  # questions for names
        self._gone: set[str] = set()  # clients that were waited for in vain
        self.waited_for: dict[str, UnderWay] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(work,), name=work.__name__, daemon=True)
            for work in (self._look_for_answers, self._look_who_is_there)
        ]

    def __enter__(self) -> Exchange:
        self._link.renew(0)
        with suppress(Exception):  # the threads see to that, and say so
            self._notice()
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Nobody waits for an answer any more."""
        self._over.set()
        self._some.set()
        self._link.stop()
        for one in list(self._tries.values()):
            one.asked.came.set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._link.close(done=kind is None)
        for thread in self._threads:
            thread.join(timeout=PAUSE)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return self._over.is_set()

    def pause(self, seconds: float) -> None:
        """Wait, unless the run is over."""
        self._over.wait(seconds)

    def time(self) -> float:
        return self._clock()

    @property
    def online(self) -> set[str]:
        """The clients whose SuperNodes are there."""
        return set(self._there)

    @property
    def registered(self) -> set[str]:
        """The clients that have a key here."""
        return set(self._link.roster) if self._link.keys else set(self._names.values())

    def away(self, name: str) -> str:
        """Why a client is not asked: it was waited for in vain, and is still not there."""
        return NOT_THERE if name in self._gone and name not in self._there else ""

    def give_up(self, names: Iterable[str]) -> None:
        """These were waited for in vain: they are not waited for again until they come."""
        self._gone.update(names)

    # ------------------------------------------------------------------ one question

    def ask(self, name: str, frame: bytes, patience: Patience, keeps: bool = False) -> bytes:
        """The frame with which a client answers, or `NoAnswer`.

        keeps: an answer to the question counts until `patience` is over, and not only until the question is sent again.
        A client that was away may then answer a question that nobody waits for any more, so it must cost nothing.
        """
        now = self.waited_for[name] = UnderWay(time.time())
        asked = _Asked()
        try:
            return self._answered(asked, name, frame, patience, now, keeps)
        finally:
            self.waited_for.pop(name, None)
            for sent, one in list(self._tries.items()):
                if one.asked is asked:
                    self._tries.pop(sent, None)

    def _answered(
        self, asked: _Asked, name: str, frame: bytes, patience: Patience, now: UnderWay, keeps: bool
    ) -> bytes:  # fmt: skip
        end = self._clock() + patience.whole
        most = min(SHORT, patience.offline) if name in self._gone else patience.offline
        unheard = 0.0  # seconds in which nobody can have worked on it
        has_failed = False  # the last try: nobody was there from its end on
        lost = 0
        wait = patience.first + len(frame) // SLOWEST
        is_under_way = False  # an earlier copy, as far as is known
        while (left := end - self._clock()) > 0:
            self._check_open()
            begun = self._clock()
            if self._link.submitted <= self._lost:  # this side has no SuperLink, and no client's time passes
                self._renew(self._link.submitted)
                end += self._clock() - begun
                continue
            node = self._there.get(name)
            if node is None:
                now.wrong = NOT_THERE
                self._over.wait(min(LOOK, left))
                unheard += self._clock() - begun
            else:
                now.tries += 1
                kept = left if keeps and not is_under_way else min(wait, left)  # each copy that is taken costs a turn
                self._send(asked, node, frame, min(wait, left), kept)
                if asked.answer is not None:
                    self._gone.discard(name)
                    return asked.answer
                now.wrong = asked.wrong
                is_under_way = not asked.wrong
                if asked.wrong == LINK_LOST:  # no fault of the client's, and not its time
                    lost += 1
                    self._over.wait(PAUSE)
                    end += self._clock() - begun
                elif asked.wrong:
                    since = begun if has_failed else self._clock()  # an owner that was killed may have worked until then
                    self._over.wait(PAUSE)
                    unheard += self._clock() - since
                    has_failed = True
                else:
                    wait = min(2 * wait, patience.whole)
                    has_failed = False
            if unheard >= most:
                self._gone.add(name)
                break
            if lost >= MOST_LOST:  # it may be the question that the SuperLink does not take
                break
        raise NoAnswer(now.wrong or "it did not answer in time")

    def _send(self, asked: _Asked, node: int, frame: bytes, seconds: float, kept: float) -> None:
        """One try, which is waited for so many seconds, and kept by the SuperLink for so many and a few more."""
        one = _Try(asked, node, self._link.submitted)
        asked.begin(one)
        try:
            sent = self._link.push(Message(letters.content_of(frame), node, letters.TYPE, ttl=kept + LONGER))
        except Failed:
            self._renew(one.link)
            one.failed(LINK_LOST)
            return
        except Exception:  # of Flower
            if one.link <= self._lost or self._link.submitted != one.link:  # somebody else has closed this link
                one.failed(LINK_LOST)
                return
            log.exception("a question could not be sent")
            one.failed(NOT_SENT)
            return
        self._tries[sent] = one
        if self._over.is_set() or self._link.submitted != one.link:  # nobody will see it again
            one.failed(LINK_LOST)
        self._some.set()
        asked.came.wait(seconds)

    def _check_open(self) -> None:
        if self._over.is_set():
            raise NoAnswer("the run is over")

    # ------------------------------------------------------------------ answers, and who is there

    def _keep(self, work: Callable[[], None]) -> None:
        """Do this again and again. Where the SuperLink is not there, or does not know the run, it is submitted again."""
        while not self._over.is_set():
            seen = self._link.submitted
            try:
                self._once(work, seen)
            except Exception:  # of Flower, about one message: the others must go on
                if not self._over.is_set():
                    log.exception("answers could not be looked for")
                self._over.wait(PAUSE)

    def _once(self, work: Callable[[], None], seen: int) -> None:
        try:
            work()
        except Failed:
            self._renew(seen)
            self._over.wait(PAUSE)  # a SuperLink that takes runs and nothing else is not flooded with them

    def _look_for_answers(self) -> None:
        link = self._link.submitted
        wanted = [*_of(self._tries, link), *_of(self._who, link)]
        if not wanted:
            self._some.wait(LOOK)
            self._some.clear()
            return
        for message in self._link.pull(wanted):
            try:
                self._came(message)
            except Exception:  # about this one: the others have come too, and do not come twice
                log.exception("an answer could not be read")
        self._over.wait(POLL)

    def _came(self, message: Message) -> None:
        """Give an answer to whoever waits for it."""
        to = message.metadata.reply_to_message_id
        who = self._who.pop(to, None)
        if who is not None:
            self._called(who.node, message)
        one = self._tries.pop(to, None)
        if one is None:
            return
        if message.has_error():
            one.failed(_said(message))
        elif message.metadata.src_node_id != one.node:
            one.failed("another SuperNode answered in its place")
        else:
            try:
                one.answered(letters.frame_of(message))
            except letters.BadLetter as error:
                one.failed(str(error))

    def _look_who_is_there(self) -> None:
        """And show the SuperLink that the run goes on."""
        self._notice()
        if self._clock() - self._beaten >= BEAT:
            self._beaten = self._clock()
            seen = self._link.submitted  # before the sign: it may be renewed meanwhile
            if not self._link.beat():
                self._renew(seen)
        self._over.wait(LOOK)

    def _notice(self) -> None:
        nodes = self._link.online()
        if self._link.keys:
            self._there = nodes
            return
        here = set(nodes.values())
        self._ask_names(here)
        self._there = {name: node for node, name in list(self._names.items()) if node in here}

    def _ask_names(self, nodes: Iterable[int]) -> None:
        """Ask the nodes that have not told their names. One that does not answer, or says nonsense, is asked again."""
        now = self._clock()
        self._forget(lambda who: who.until <= now)
        asked = {who.node for who in list(self._who.values())}
        for node in nodes:
            if node not in self._names and node not in asked:
                self._ask_name(node, now + SECONDS_FOR_A_NAME)
        self._some.set()

    def _ask_name(self, node: int, until: float) -> None:
        seen = self._link.submitted
        try:
            sent = self._link.push(Message(letters.asks_who(), node, letters.WHO, ttl=SECONDS_FOR_A_NAME))
        except Failed:
            raise
        except Exception:  # about this one: the others have names
            log.exception("a SuperNode could not be asked for its name")
            return
        self._who[sent] = _Who(node, seen, until)

    def _called(self, node: int, message: Message) -> None:
        """Note a client's name. Where two SuperNodes tell one name, the last one is the client's: it was restarted."""
        if message.metadata.src_node_id != node:
            return
        with suppress(letters.BadLetter):
            self._names[node] = letters.name_of(message)

    def _forget(self, which: Callable[[_Who], bool]) -> None:
        """Wait no longer for answers to these questions for names."""
        for sent, who in list(self._who.items()):
            if which(who):
                self._who.pop(sent, None)

    def _renew(self, seen: int) -> None:
        """Submit the run again. What was sent before is lost, and whoever waits for an answer sends its question again."""
        self._lost = max(self._lost, seen)
        self._lose(seen)  # those that wait are told at once: until there is a link again, no time of a client passes
        while not self._over.is_set():
            try:
                if self._link.renew(seen):
                    self._there = {}
                break
            except Closed:
                break
            except Exception:  # of this side: it must not look like a client's fault, nor end the thread
                log.exception("the run could not be submitted again")
                self._over.wait(PAUSE)
        self._forget(lambda who: who.link <= seen)
        self._lose(seen)

    def _lose(self, seen: int) -> None:
        """Nobody will answer what was sent over this link, or an earlier one."""
        for one in list(self._tries.values()):
            if one.link <= seen:  # others may be on their way over the new link
                one.failed(LINK_LOST)


def _of(sent: Mapping[str, _Try | _Who], link: int) -> list[str]:
    """What was sent since the run was submitted: of other runs a SuperLink refuses to speak."""
    return [each for each, one in list(sent.items()) if one.link == link]


def _said(message: Message) -> str:
    """What an error says; at most a line of it, since anybody may have written it."""
    return f"error {message.error.code}: {(message.error.reason or '')[:MOST_SAID]!r}"
