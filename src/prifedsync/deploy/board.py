"""What the server shows of a run while it lasts: written to a file every few seconds, for `deploy status`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ..asking.document import RunDocument
from ..local.answers import Absent, Answer, Lost, Refused, Sent
from ..values import BadValue
from .status import ClientStatus, Node, Phase, Reaction, Status, is_late, write

WORDS: dict[type[Answer], Reaction] = {Sent: "sent", Absent: "absent", Refused: "refused", Lost: "lost"}
log = logging.getLogger(__name__)

EVERY = 2.0  # seconds between two writings

Scores = Mapping[str, float | None]


class Waits(Protocol):
    """A question that is under way."""

    since: float  # unix time
    wrong: str  # what became of the last try


class There(Protocol):
    """Who is there, and who is waited for."""

    @property
    def online(self) -> set[str]: ...

    @property
    def registered(self) -> set[str]: ...

    @property
    def waited_for(self) -> Mapping[str, Waits]: ...


class Board:
    """The status of one run. A context manager: a thread writes it while it is open."""

    def __init__(self, path: Path, document: RunDocument, question: float) -> None:
        self.there: There | None = None
        self.missed: Callable[[], Mapping[str, str]] = dict  # why clients are not enrolled
        self._path = path
        self._document = document
        self._question = question
        self._begun = time.time()
        self._round = 0
        self._phase: Phase = "waiting for clients"
        self._answers: dict[str, Answer] = {}
        self._last: dict[str, float] = {}  # when each answered last
        self._counts = dict.fromkeys(document.names, 0)  # rounds that each answered
        self._scores: Mapping[str, Scores] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()  # of the file: it is written at the end too
        self._thread = threading.Thread(target=self._keep_writing, name="board", daemon=True)

    def __enter__(self) -> Board:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if kind is None:
            self._phase = "finished"
        elif issubclass(kind, KeyboardInterrupt):
            self._phase = "ended"
        else:
            self._phase = "stopped by an error"
        self._write("" if error is None or self._phase == "ended" else _said(error))

    def round_begins(self, round: int, names: Sequence[str]) -> None:
        """These clients are asked now. `round` counts from 0, as Algorithm 1 does, and the page from 1."""
        self._round = round + 1
        self._phase = "training"
        self._answers = {}

    def round_ends(self, answers: Mapping[str, Answer], scores: Mapping[str, Scores]) -> None:
        """What came of it, and the scores that owners let leave."""
        now = time.time()
        for name, answer in answers.items():
            if isinstance(answer, (Sent, Absent)):
                self._counts[name] += 1
                self._last[name] = now
        self._answers = dict(answers)
        self._scores = dict(scores)

    def _keep_writing(self) -> None:
        while not self._over.wait(EVERY):
            try:
                self._write()
            except OSError as error:  # the disk is full, for instance: the run goes on without a status
                log.warning("the status could not be written: %s", error)

    def _write(self, error: str = "") -> None:
        nodes = self._nodes()
        missed = self.missed()
        clients = tuple(self._client(name, nodes[name], missed.get(name, "")) for name in self._document.names)
        status = Status(
            run=self._document.run, phase=self._phase, round=self._round, rounds=self._document.rounds, begun=self._begun,
            changed=time.time(), error=error, clients=clients,
        )  # fmt: skip
        with self._lock:
            write(self._path, status)

    def _client(self, name: str, node: Node, missed: str) -> ClientStatus:
        waits = self.there.waited_for.get(name) if self.there else None
        given = self._answers.get(name)
        answer: Reaction = "asked" if waits else "" if given is None else WORDS.get(type(given), "")
        since = waits.since if waits else None
        return ClientStatus(
            name=name,
            node=node,
            answer=answer,
            reason=(waits.wrong if waits else getattr(given, "reason", "")) or missed,
            late=is_late(time.time(), since, answer, self._question),
            since=since,
            answered=self._counts[name],
            last=self._last.get(name),
            shown=self._scores.get(name),
        )

    def _nodes(self) -> dict[str, Node]:
        """What is known of every client's SuperNode, found once for all."""
        registered = self.there.registered if self.there else set()
        online = self.there.online if self.there else set()
        nodes: dict[str, Node] = {}
        for name in self._document.names:
            nodes[name] = "online" if name in online else "offline" if name in registered else "not registered"
        return nodes


def _said(error: BaseException) -> str:
    """A refusal says all by itself; another error may have no words but its name."""
    return str(error) if isinstance(error, BadValue) else f"{type(error).__name__}: {error}"
