"""The network side of one client: a SuperNode, and what carries its questions to the owner's socket.

Flower's SuperNode is told not to execute anything (`--isolation process`). Its tasks wait until somebody takes them who has
its secret, and that is this process. So what a server sends is never unpacked, imported or run here.

The SuperNode in its turn proves that it is ours, by a certificate that this process has made for it. Otherwise any user of
the machine could wait for its port to be free, and ask the owner in the name of the network side.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..files import write_file
from ..owner.permissions import check_private
from ..values import BadValue
from .places import SitePlaces
from .processes import FLOWER, Process, check_flower, free_port, listens, program
from .settings import SiteSettings, placed, site_settings

if TYPE_CHECKING:
    from .authority import Vouched

HERE = "127.0.0.1"  # where the SuperNode offers its tasks
KNOCK = 1.0  # seconds between two looks whether the server listens
KNOCKING = 30.0  # seconds until a SuperNode is started all the same: it may know a way through a proxy
AGAIN = 5.0  # seconds until a SuperNode that ended is started again: for a minute the SuperLink may refuse it

log = logging.getLogger(__name__)


def join(folder: Path, ready: Callable[[SiteSettings], None] = lambda settings: None) -> int:
    """Carry questions until a signal comes, and return it."""
    check_flower()
    from ..engines.flower.calls import Address
    from ..engines.flower.site import Door, carry
    from .authority import vouched

    settings = site_settings(folder)
    places = SitePlaces(settings.folder)
    check_files(settings, places)
    port = settings.port or free_port()
    secret = places.secret.read_bytes()
    door = Door(settings.owner, settings.wait, settings.client if settings.insecure else None, settings.question)
    supernode = vouched([HERE])
    over = threading.Event()
    ended_by: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        ended_by.append(number)
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    carrier = threading.Thread(
        target=carry,
        args=(Address(placed(HERE, port), supernode.authority), secret, door, over),
        name="carry",
        daemon=True,
    )
    carrier.start()
    ready(settings)
    _keep_running(lambda: _started(settings, places, port, supernode), settings.server, over)
    return ended_by[0]


def check_files(settings: SiteSettings, places: SitePlaces) -> None:
    """Refuse a folder that lacks a file, or whose secrets others may read."""
    secrets = [places.secret] if settings.insecure else [places.secret, places.key]
    for path in secrets if settings.insecure else [*secrets, places.authority]:
        if not path.is_file():
            raise BadValue("site", path, "is not there", "`prifedsync deploy init` made it: copy the whole folder")
    for path in secrets:
        check_private(path.name, path)


def _wait_for_server(place: str, over: threading.Event) -> None:
    """Wait a while until the server listens. A SuperNode that finds nobody waits longer after each try."""
    end = time.monotonic() + KNOCKING
    while time.monotonic() < end and not over.is_set() and not listens(place):
        over.wait(KNOCK)


def _keep_running(start: Callable[[], Process], server: str, over: threading.Event) -> None:
    """Start a SuperNode again whenever it ends."""
    while True:
        _wait_for_server(server, over)
        if over.is_set():
            return
        process = start()
        try:
            while process.runs and not over.wait(1.0):
                continue
        finally:
            process.end()
        if not over.is_set():
            log.warning("the SuperNode ended with status %s and is started again: see %s", process.status, process.log)
            over.wait(AGAIN)


def _started(settings: SiteSettings, places: SitePlaces, port: int, supernode: Vouched) -> Process:
    """A SuperNode that has the certificate. It is written at each start: what lies there is never taken on trust."""
    places.flower.mkdir(exist_ok=True)
    places.flower.chmod(0o700)
    write_file(places.task_key, supernode.key, private=True)
    write_file(places.task_certificate, supernode.certificate)
    write_file(places.task_authority, supernode.authority)
    return Process(_command(settings, places, port), places.flower / "supernode.log", _home(places))


def _home(places: SitePlaces) -> dict[str, str]:
    return {**FLOWER, "FLWR_HOME": str(places.flower)}


def _command(settings: SiteSettings, places: SitePlaces, port: int) -> list[str]:
    """How the SuperNode is started."""
    command = [program("flower-supernode"), "--superlink", settings.server]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(places.secret)]
    command += ["--host", HERE, "--port", str(port)]
    command += ["--ssl-certfile", str(places.task_certificate), "--ssl-keyfile", str(places.task_key)]
    command += ["--ssl-ca-certfile", str(places.task_authority)]
    if settings.insecure:
        return [*command, "--insecure"]
    return [
        *command,
        "--root-certificates",
        str(places.authority),
        "--auth-supernode-private-key",
        str(places.key),
    ]
