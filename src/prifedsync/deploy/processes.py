"""Processes that are started here, and end with whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ..values import NOT_GIVEN, BadValue
from .settings import placed

PR_SET_PDEATHSIG = 1
SECONDS_TO_END = 10.0
MOST_LOG = 10 * 2**20  # bytes of a log, above which a start begins a new one
EXTRA = "install the extra: pip install 'prifedsync[flower]'"
_LIBC = ctypes.CDLL(None)

FLOWER = {  # Flower asks nobody on the internet, and installs nothing
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Ended(BadValue):
    """A process ended that should not have, or does not do what it was started for."""

    def __init__(self, process: Process, rule: str) -> None:
        super().__init__(process.name, NOT_GIVEN, f"{rule}: {process.last_words}", f"all of it is in {process.log}")


class Process:
    """A process in a group of its own. If its parent is killed, so is it: a daemon without one would hold its ports."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start it from a thread that lives as long as it should: Linux takes the end of that thread for the parent's."""
        self.name = Path(command[0]).name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.is_file() and log.stat().st_size > MOST_LOG:
            log.replace(log.with_name(f"{log.name}.1"))
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def ask_to_end(self) -> None:
        """Ask it gently, and do not wait."""
        if self.runs:
            _signal(self.pid, signal.SIGTERM)

    def end(self) -> None:
        """End it and all that it started: gently, and after a while not."""
        if self.runs:
            self.ask_to_end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_END)
        _signal(self.pid, signal.SIGKILL)
        self._process.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def program(name: str) -> str:
    """A program that is installed beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.is_file():
        raise BadValue("flower", path, "is not installed", EXTRA)
    return str(path)


def check_flower() -> None:
    """Refuse to go on without the extra, before anything is started."""
    for name in ("flwr", "httpx"):
        if find_spec(name) is None:
            raise BadValue("flower", NOT_GIVEN, f"is not installed here: there is no package {name}", EXTRA)
    program("flower-superlink")
    program("flower-supernode")


def own(*words: str) -> list[str]:
    """Our own command line."""
    return [sys.executable, "-m", "prifedsync.cli", *words]


def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Refuse a place at which this process cannot listen: another program has the port, for instance."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except OSError as error:
        rule = f"cannot be listened on ({error.strerror})"
        remedy = "end the program that has this port, or set listen.host and listen.port in server.toml"
        raise BadValue("listen", placed(host, port), rule, remedy) from None


def listens(place: str) -> bool:
    """Whether somebody accepts connections there."""
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except OSError:
        return False


def wait_until_listening(process: Process, place: str, seconds: float) -> None:
    """Wait until a process accepts connections; it may have to be started again."""
    end = time.monotonic() + seconds
    while not listens(place):
        if not process.runs or time.monotonic() > end:
            raise Ended(process, f"does not listen on {place}")
        time.sleep(0.1)
