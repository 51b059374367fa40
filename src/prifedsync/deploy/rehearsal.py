"""A project rehearsed on this machine: every party in processes of its own on 127.0.0.1, with the project's own keys.

It works on a copy, in which ledgers begin anew. So what comes out is charged to nobody: records are made up, unless the
owners' own are asked for.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ..config import to_toml
from ..data.encoding import Encoding
from ..data.preprocessing import Preprocessing
from ..events import Note, Watch, Working
from ..files import write_file
from ..owner.ledger import Ledger
from ..owner.ledger.pages import kept_for
from ..owner.policy import FilesConfig, Policy
from ..owner.policy import read as read_policy
from ..record import RunRecord
from ..values import BadValue
from .made_up import made_up
from .places import ClientPlaces, ProjectPlaces, SitePlaces
from .processes import Ended, Process, check_flower, free_port, own
from .serving import serve, stopped_by_signals
from .settings import placed, server_settings, site_settings, waiting_for
from .site import check_files

BEGIN = 120.0  # seconds for all clients to come
QUESTION = 15.0  # seconds until a question is sent again
SECONDS_TO_START = 120.0  # of an owner's daemon, which loads its records first
LEFT_OUT = shutil.ignore_patterns(
    "run", "flower", "ledger.db*", "*.log", "*.log.*", "status.json", "run.json", "*.sock", "*.csv", "*.npz"
)
NODES = "nodes"  # a client's key is named after it, and a client may have the name of a log
MADE_UP = "made-up.csv"


@contextmanager
def rehearsed(
    project: Path, reply: float = 1.0, note: Callable[[str], None] = lambda text: None, real_records: bool = False
) -> Iterator[ProjectPlaces]:
    """A copy of the project on 127.0.0.1 with new ledgers, in a folder that is removed; nothing runs yet.

    reply         seconds after which owners' replies leave
    note          is told whose records are made up
    real_records  take the owners' own, where they are there: what comes out is a release that no ledger charges
    """
    source = ProjectPlaces(project)
    if not source.server.settings.is_file() or not source.clients.is_dir():
        raise BadValue("project", project, "is not a project", "`prifedsync deploy init DIR` makes one")
    rules = Preprocessing.read(source.server.preprocessing)
    for client in clients_of(source):  # a network side that refuses its folder would be a client that never comes
        check_files(site_settings(client.site), SitePlaces(client.site))
        read_policy(client.policy)
    with tempfile.TemporaryDirectory(prefix="prifedsync-") as folder:  # a short path: it holds sockets
        copy = ProjectPlaces(Path(folder))
        shutil.copytree(source.server.folder, copy.server.folder, ignore=_left_out)
        port = free_port()
        _move_server(copy, port, reply)
        for number, client in enumerate(clients_of(source)):
            place = copy.client(client.folder.name)
            shutil.copytree(client.folder, place.folder, ignore=_left_out)
            _move_client(place, port, reply, copy.folder / f"door-{number}")
            _give_records(place, client, rules, note, real_records)
        yield copy


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Files of a folder that a copy begins without."""
    return set() if Path(folder).name == NODES else set(LEFT_OUT(folder, names))


def clients_of(project: ProjectPlaces) -> list[ClientPlaces]:
    """The folders of all clients of a project."""
    return [ClientPlaces(path) for path in sorted(project.clients.iterdir()) if path.is_dir()]


def _move_server(project: ProjectPlaces, port: int, reply: float) -> None:
    settings = server_settings(project.server.folder)
    listen = replace(settings.listen, host="127.0.0.1", port=port)
    waiting = waiting_for(reply, replace(settings.waiting, begin=BEGIN, question=QUESTION))
    write_file(project.server.settings, to_toml(replace(settings, listen=listen, waiting=waiting)).encode())


def _move_client(places: ClientPlaces, port: int, reply: float, door: Path) -> None:
    """The socket is one of the copy, too: a question to the owner's own daemon would be charged.

    door: a new folder for it, of a short name, since a socket's path has a hundred bytes and a client's name may have more.
    """
    socket = str(door / "owner.sock")
    door.mkdir(mode=0o700)
    site = replace(site_settings(places.site), server=placed("127.0.0.1", port), port=0, socket=socket)
    write_file(places.site / "site.toml", to_toml(site).encode())
    policy = read_policy(places.policy)
    replies = replace(policy.replies, seconds=min(reply, policy.replies.seconds))
    changed = replace(policy, users=(), files=FilesConfig(socket=socket), replies=replies)
    write_file(places.policy, to_toml(changed).encode(), private=True)
    Ledger.create(changed.path("ledger"), **kept_for(changed), anchor=None)


def _give_records(
    places: ClientPlaces, source: ClientPlaces, rules: Preprocessing, note: Callable[[str], None], real_records: bool
) -> None:
    """The owner's own records, which are read where they lie, if they are wanted and there; otherwise made-up ones."""
    policy = read_policy(places.policy)
    own = source.owner / policy.data.path
    if own.exists() and real_records:
        data = replace(policy.data, path=str(own.resolve()))
    elif isinstance(rules.encoding, Encoding):
        write_file(places.owner / MADE_UP, made_up(rules.encoding, policy), private=True)
        note(f"the records of client {policy.client} are made up")
        data = replace(policy.data, path=MADE_UP)
    else:
        remedy = "put arrays of the same form there, and add --real-records: only tables can be made up"
        raise BadValue("data.path", own, "cannot be made up", remedy)
    write_file(places.policy, to_toml(replace(policy, data=data)).encode(), private=True)


class Clients:
    """The processes of all clients: an owner's daemon and a network side each. A context manager that ends them."""

    def __init__(self, project: ProjectPlaces) -> None:
        self.places = {place.folder.name: place for place in clients_of(project)}
        self.owners: dict[str, Process] = {}
        self.sites: dict[str, Process] = {}

    def __enter__(self) -> Clients:
        try:
            for name in self.places:
                self.start_owner(name)
                self.start_site(name)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all of them, side by side, also where one does not end well."""
        processes = (*self.sites.values(), *self.owners.values())
        with ExitStack() as ending:
            for process in processes:
                ending.callback(process.end)
            for process in processes:
                process.ask_to_end()

    def start_owner(self, name: str) -> None:
        """Start an owner's daemon, for instance again."""
        place = self.places[name]
        self.owners[name] = Process(own("owner", "serve", str(place.policy), "--quiet"), place.folder / "owner-daemon.log")

    def start_site(self, name: str) -> None:
        """Start a network side."""
        place = self.places[name]
        self.sites[name] = Process(own("deploy", "join", str(place.site)), place.folder / "site.log")

    def wait_for_owners(self, seconds: float = SECONDS_TO_START) -> None:
        """Wait until all daemons listen."""
        end = time.monotonic() + seconds
        for name, place in self.places.items():
            socket = _policy(place).path("socket")
            while not socket.exists():
                if not self.owners[name].runs or time.monotonic() > end:
                    raise Ended(self.owners[name], f"of client {name} does not listen")
                time.sleep(0.1)


def _policy(place: ClientPlaces) -> Policy:
    return read_policy(place.policy)


def rehearse(
    project: Path, out: Path, watch: Watch = lambda event: None, reply: float = 1.0, real_records: bool = False
) -> RunRecord:
    """All rounds of a project on this machine. `out` becomes the run folder; every process that was started has ended."""
    check_flower()
    with (
        stopped_by_signals(),
        _new_folder(out),
        rehearsed(project, reply, lambda text: watch(Note(text)), real_records) as copy,
    ):
        watch(Working("starting the clients", 0, 1))
        with Clients(copy) as clients:
            clients.wait_for_owners()
            record = serve(copy.server.folder, watch, rehearsal=True)
        shutil.copytree(copy.server.run, out, dirs_exist_ok=True)
    return record


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """Made before the rehearsal, which takes minutes, and removed where nothing comes of it. An empty one serves too."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
    except OSError as error:
        raise BadValue("out", out, f"cannot be made: {error.strerror}", "name a folder where this user may write") from None
    if not is_empty:
        raise BadValue("out", out, "is not empty", "name a new folder")
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            out.rmdir()
