"""The SuperLink: Flower's server, which carries messages and executes nothing."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from ..values import BadValue
from .places import ServerPlaces
from .processes import FLOWER, Process, check_free, program, wait_until_listening
from .settings import ServerSettings

SECONDS_TO_START = 60.0
AGAIN = 1.0  # seconds until one that ended is started again
MOST_STARTS = 5  # of one that never listened

log = logging.getLogger(__name__)


class SuperLink:
    """A SuperLink that is started again when it ends. A context manager; it listens when the block begins."""

    def __init__(self, settings: ServerSettings, places: ServerPlaces) -> None:
        self._settings = settings
        self._places = places
        self._over = threading.Event()
        self._listens = threading.Event()
        self._failed: Exception | None = None
        self.process: Process | None = None
        # Linux ends a child with the thread that started it, so one thread starts them all
        self._thread = threading.Thread(target=self._keep_running, name="superlink", daemon=True)

    def __enter__(self) -> SuperLink:
        self._thread.start()
        try:
            while not self._listens.wait(0.1):
                if not self._thread.is_alive():
                    raise self._failed or RuntimeError("the SuperLink could not be started")
        except BaseException:  # an interruption: whoever waits here has started it
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._thread.join()

    def _keep_running(self) -> None:
        """One that never listened is given up after a few starts. One that did is started again for ever."""
        starts = 0
        while not self._over.is_set() and (self._listens.is_set() or starts < MOST_STARTS):
            starts += 1
            try:
                self._run_once()
            except (BadValue, OSError) as error:  # it does not listen, or there is no memory or disk for it
                self._failed = error
                if self._listens.is_set():  # else it is raised after the last start
                    log.warning("the SuperLink could not be started: %s", error)
            self._over.wait(AGAIN)

    def _run_once(self) -> None:
        check_free(self._settings.listen.host, self._settings.listen.port)  # else its owner would pass for our SuperLink
        self.process = Process(self._command(), self._places.flower / "superlink.log", self._home())
        try:
            wait_until_listening(self.process, self._settings.place, SECONDS_TO_START)
            self._listens.set()
            while self.process.runs and not self._over.wait(0.5):
                continue
        finally:
            self.process.end()
        if not self._over.is_set():
            log.warning("the SuperLink ended with status %s and is started again", self.process.status)

    def _home(self) -> dict[str, str]:
        return {**FLOWER, "FLWR_HOME": str(self._places.flower)}

    def _command(self) -> list[str]:
        """How the SuperLink is started. Whoever has its secret may take its tasks: it executes none itself."""
        listen = self._settings.listen
        command = [program("flower-superlink"), "--host", listen.host, "--port", str(listen.port)]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self._places.secret)]
        command += ["--database", str(self._places.flower / "superlink.db")]
        if self._settings.insecure:
            return [*command, "--insecure"]
        return [
            *command,
            "--ssl-ca-certfile",
            str(self._places.authority),
            "--ssl-certfile",
            str(self._places.certificate),
            "--ssl-keyfile",
            str(self._places.key),
            "--enable-supernode-auth",
        ]
