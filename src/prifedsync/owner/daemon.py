"""The daemon of an owner: a Unix socket, signals and a policy around a desk.

The thread that calls `serve` does all the work, and owns torch and the ledger. Another one accepts connections, and each
connection has its own, which only reads and writes frames.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from ..local.draws import Draws, SystemDraws
from ..values import BadValue
from .conversations import Conversations
from .desk import Desk
from .ledger.pages import open_ledger
from .listening import askers, listening, only_daemon
from .log import OwnerLog
from .policy import Policy, read
from .records import records_of
from .turns import Turns

AFTER_A_FAILURE = 0.1  # seconds until a connection is accepted again
FIXED = ("client", "source", "data", "budget", "files", "folder")  # parts of a policy that need a restart


def serve(path: str | Path, ready: Callable[[Policy], None], draws: Callable[[], Draws] = SystemDraws) -> int:
    """Answer questions until a signal comes, and return it. `ready` is called when the socket is there."""
    os.umask(0o077)
    policy = read(path)
    users = askers(policy)
    with only_daemon(policy.path("ledger")), open_ledger(policy) as ledger:
        records = records_of(policy)
        with closing(OwnerLog(policy.path("log"))) as log:
            desk = Desk(policy, ledger, records, log, draws)
            daemon = Daemon(Path(path), desk, users, log)
            with daemon.signals(), listening(policy.path("socket")) as listener:  # whoever sees the socket may end it
                return daemon.serve(listener, ready)


class Daemon:
    """A desk with a socket before it."""

    def __init__(self, path: Path, desk: Desk, users: frozenset[int], log: OwnerLog) -> None:
        self._path = path
        self._desk = desk
        self._log = log
        self._turns = Turns(desk, log)
        self._conversations = Conversations(users, desk.helper_bytes, self._turns.put, self._turns.idle, log)
        self._reread = False
        self._ended_by = 0

    def serve(self, listener: socket.socket, ready: Callable[[Policy], None]) -> int:
        """Answer until a signal ends it; the number of that signal."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self._log.info("the daemon listens")
        ready(self._desk.policy)
        while self._turns.serve_one():
            if self._reread:
                self._reread = False
                self._read_again()
        self._log.info(f"the daemon ends: {signal.Signals(self._ended_by).name}")
        return self._ended_by

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended_by:
            try:
                self._conversations.accept(listener)
            except OSError:
                if self._ended_by:
                    return
                self._log.exception("a connection could not be accepted")
                time.sleep(AFTER_A_FAILURE)

    def _read_again(self) -> None:
        """Another policy from the same file, and a new file for the log. A bad policy changes nothing."""
        try:
            self._log.reopen()
            policy = read(self._path)
            users = askers(policy)
        except (BadValue, OSError) as error:
            self._log.warning(f"the policy stays as it was: {error}")
            return
        changed = [name for name in FIXED if getattr(policy, name) != getattr(self._desk.policy, name)]
        if changed:
            self._log.warning(f"the policy stays as it was: another {', '.join(changed)} needs a restart")
            return
        self._desk.changed(policy)
        self._conversations.users = users
        self._log.info("the policy was read again")

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Signals end the daemon between two answers, or let it read its policy again."""
        handlers = {signal.SIGTERM: self._end, signal.SIGINT: self._end, signal.SIGHUP: self._read_soon}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        waker = signal.set_wakeup_fd(self._turns.waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ended_by = number
        self._turns.end()

    def _read_soon(self, number: int, frame: FrameType | None) -> None:
        self._reread = True
