"""A SuperLink for tests, in memory, with sites that do what a test tells them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from prifedsync.asking.frames import MAGIC, PREFIX
from prifedsync.engines.flower import exchange as exchanges
from prifedsync.engines.flower import letters
from prifedsync.engines.flower.exchange import Exchange, Patience
from prifedsync.engines.flower.link import Closed

SUPERLINK = 1  # its node
FIRST_NODE = 101
PATIENT = Patience(whole=60.0, first=30.0, offline=30.0)  # never over, unless something is wrong
FASTER = {"POLL": 0.002, "LOOK": 0.01, "BEAT": 0.02, "PAUSE": 0.01}


def frame_of(header=b"a header", body=b""):
    """A frame that says anything."""
    return PREFIX.pack(MAGIC, len(header), len(body)) + header + body


def identity():
    """Flower's messages take who sends them from here."""
    TaskIdentity.run_id = 7
    TaskIdentity.task_id = 8
    TaskIdentity.node_id = SUPERLINK


def faster(monkeypatch):
    """The same waits, shorter."""
    for name, seconds in FASTER.items():
        monkeypatch.setattr(exchanges, name, seconds)


# ---------------------------------------------------------------------- what a site does with a question


def answers(frame):
    return lambda link, question: link.reply(question, letters.content_of(frame))


def echoes(link, question):
    link.reply(question, letters.content_of(letters.frame_of(question)))


def is_silent(link, question):
    """The question is never answered."""


def says_error(link, question, code=letters.REFUSED, reason="the owner's daemon cannot be reached"):
    link.deliver(Message(Error(code, reason), reply_to=question))


def says_content(content):
    return lambda link, question: link.reply(question, content)


def tells(name):
    """Where there are no keys: the site's name, and an echo of everything else."""

    def site(link, question):
        if question.metadata.message_type == letters.WHO:
            link.reply(question, letters.says_who(name))
        else:
            echoes(link, question)

    return site


def in_turn(*sites):
    """One after another; the last one for good."""
    waiting = list(sites)

    def site(link, question):
        now = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        now(link, question)

    return site


# ---------------------------------------------------------------------- the SuperLink


class FakeLink:
    """What `link.Link` is to an exchange. A site is called with each question that is pushed to its node."""

    def __init__(self, *names, keys=True):
        self.keys = keys
        self.submitted = 0
        self.nodes = {name: FIRST_NODE + at for at, name in enumerate(names)}  # those that are there
        self.sites = dict.fromkeys(self.nodes.values(), echoes)
        self.pushed = []  # all questions
        self.failing = set()  # names of calls that fail
        self.back = threading.Event()  # a SuperLink that is gone is there again
        self.back.set()
        self.stopped = threading.Event()
        self.closed = None
        self.says_expired = True  # of questions whose time is over
        self._run_of = {}
        self._expire = {}
        self._replies = []
        self._lock = threading.RLock()
        self._renewing = threading.Lock()

    def site(self, name, does):
        self.sites[self.nodes[name]] = does

    def lose(self, *calls, back=True):
        """The SuperLink is restarted: it has forgotten everything. Only a few calls may notice."""
        with self._lock:
            self._replies.clear()
            self._expire.clear()
            self.failing = set(calls or ("push", "pull", "online", "beat"))
            if not back:
                self.back.clear()

    @property
    def roster(self):
        return dict.fromkeys(self.nodes, b"a key")

    def renew(self, seen):
        with self._renewing:
            if self.submitted != seen:
                return False
            while not self.back.wait(0.005):
                if self.stopped.is_set():
                    raise Closed
            with self._lock:
                self.failing = set()
                self.submitted += 1
            return True

    def online(self):
        self._check("online")
        if self.keys:
            return dict(self.nodes)
        return {str(node): node for node in self.nodes.values()}

    def push(self, message):
        with self._lock:
            self._check("push")
            sent = f"message {len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = sent
            self.pushed.append(message)
            self._run_of[sent] = self.submitted
            self._expire[sent] = time.monotonic() + message.metadata.ttl
        self.sites[message.metadata.dst_node_id](self, message)
        return sent

    def pull(self, sent):
        with self._lock:
            self._check("pull")
            if any(self._run_of.get(each, self.submitted) != self.submitted for each in sent):
                raise httpx.HTTPError("`message_ids` contains invalid IDs")
            found = [each for each in self._replies if each.metadata.reply_to_message_id in sent]
            self._replies = [each for each in self._replies if each not in found]
            if not self.says_expired:
                return found
            return found + [_expired(each) for each in sent if time.monotonic() > self._expire.get(each, float("inf"))]

    def beat(self):
        return "beat" not in self.failing

    def stop(self):
        self.stopped.set()

    def close(self, done):
        self.stop()
        self.closed = done

    def _check(self, call):
        if call in self.failing:
            raise httpx.ConnectError("the SuperLink is not there")

    # ------------------------------------------------------------------ from sites

    def reply(self, question, content, node=None):
        """An answer; `node`: whose it says that it is."""
        message = Message(content, reply_to=question)
        if node is not None:
            message.metadata.__dict__["_src_node_id"] = node
        self.deliver(message)

    def deliver(self, message):
        with self._lock:
            self._replies.append(message)

    def questions(self, name):
        """The frames that a client was sent."""
        mine = [each for each in self.pushed if each.metadata.dst_node_id == self.nodes[name]]
        return [letters.frame_of(each) for each in mine if each.metadata.message_type == letters.TYPE]

    def waits(self, name):
        """How long each try was waited for."""
        mine = [each.metadata for each in self.pushed if each.metadata.dst_node_id == self.nodes[name]]
        return [each.ttl - exchanges.LONGER for each in mine if each.message_type == letters.TYPE]


def _expired(sent):
    """What a SuperLink says of a question whose time is over."""
    asked = Message(letters.asks_who(), SUPERLINK, letters.TYPE)
    asked.metadata.__dict__["_message_id"] = sent
    error = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, "Message Unavailable"), reply_to=asked)
    return make_message(metadata=error.metadata, error=error.error)


# ---------------------------------------------------------------------- asking


@contextmanager
def asking(link, clock=time.monotonic):
    """An exchange over a link, and a way to ask several clients side by side."""
    with Exchange(link, clock) as exchange, ThreadPoolExecutor(16) as pool:

        def ask(name, frame=None, patience=PATIENT):
            return pool.submit(exchange.ask, name, frame or frame_of(name.encode()), patience)

        exchange.aside = pool
        exchange.ask_aside = ask
        try:
            yield exchange
        finally:
            exchange.stop()
