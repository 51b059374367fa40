"""How the machines of a run reach each other, and how long they wait: server.toml and site.toml of a project."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from ..asking.questions import TURNS
from ..config.declaring import field
from ..config.layering import file_values
from ..config.reading import values
from ..values import BadValue

S = TypeVar("S", bound="ServerSettings | SiteSettings")

LONGEST_WAIT = 1e7  # seconds: four months, and clocks and sockets take it
TURNS_OF_A_ROUND = 10  # of an owner that a round waits for: an enrolment, questions that are sent again, some room
MOST_QUESTION = 2**30  # bytes: a model of 100 million weights in double precision
HOST = re.compile(r"[^\s/:\[\]]+|\[[^\s/\[\]]+\]")  # a name or address, where IPv6 is in brackets
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Where the SuperLink listens."""

    host: str = field(
        "127.0.0.1", "address that the SuperLink listens on; 0.0.0.0 or :: for all of this machine, by IPv4 or by IPv6"
    )
    port: int = field(9092, "port that the SuperLink listens on", 1, 65535)


@dataclass(frozen=True, kw_only=True)
class WaitingConfig:
    """How long the server waits for clients."""

    begin: float = field(600.0, "seconds until a run begins without the clients that have not come", 0, LONGEST_WAIT)
    round: float = field(
        3600.0, "seconds for a round: whoever has not answered then is left out of it", 0, LONGEST_WAIT, "(]"
    )
    question: float = field(
        60.0, "seconds until a question is sent again; the answer that is stored is the same", 0, LONGEST_WAIT, "(]"
    )
    offline: float = field(
        90.0, "seconds in a round that a client is waited for whose SuperNode is not there", 0, LONGEST_WAIT
    )


def waiting_for(reply: float, waiting: WaitingConfig | None = None) -> WaitingConfig:
    """Waits, the defaults or longer ones, for owners whose replies leave after so many seconds."""
    least = waiting or WaitingConfig()
    return replace(least, question=max(least.question, TURNS * reply), round=max(least.round, TURNS_OF_A_ROUND * reply))


@dataclass(frozen=True, kw_only=True)
class ParticipationConfig:
    """Who takes part in a round."""

    chosen_by: Literal["clients", "server"] = field(
        "clients", "each client's own coin (clients), or the server, where guarantees count every round (server)"
    )
    share: float = field(1.0, "share of the clients that the server asks in a round (chosen_by server)", 0, 1, "(]")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """All of server.toml. What is trained stands in config.toml beside it, the roster is the folder nodes."""

    where_fields_are: ClassVar[str] = "prifedsync deploy init DIR writes it with all fields"

    insecure: bool = field(False, "no TLS and no keys: for trying out on one machine")
    listen: ListenConfig = field(ListenConfig)
    waiting: WaitingConfig = field(WaitingConfig)
    participation: ParticipationConfig = field(ParticipationConfig)
    folder: Path = Path()  # of the file, and so no field of it

    def __post_init__(self) -> None:
        _checked(self, ServerSettings)
        if not _can_be_looked_up(self.listen.host):
            remedy = "give an address of this machine; 0.0.0.0 is all of them, and :: all by IPv6"
            raise BadValue("listen.host", self.listen.host, "must be a host name or an IP address", remedy)
        _check_insecure(self.insecure, "listen.host", self.listen.host)
        if self.participation.chosen_by == "clients" and self.participation.share != 1:
            rule = 'is read with participation.chosen_by = "server" alone'
            remedy = "set participation in config.toml: it is the coin of the clients"
            raise BadValue("participation.share", self.participation.share, rule, remedy)

    @property
    def place(self) -> str:
        """Where this machine's own processes reach the SuperLink."""
        own = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
        return placed(own.get(self.listen.host, self.listen.host), self.listen.port)


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """All of site.toml: the network side of one client."""

    where_fields_are: ClassVar[str] = "prifedsync deploy init DIR writes it with all fields"

    client: str = field("", "this client's name in the roster")
    server: str = field("", 'where the SuperLink is: "host:port"')
    insecure: bool = field(False, "no TLS and no keys: for trying out on one machine")
    socket: str = field("../door/owner.sock", "socket of the owner's daemon; a relative path starts at this file's folder")
    port: int = field(0, "port on 127.0.0.1 that the SuperNode offers its tasks on; 0: one that is free", 0, 65535)
    wait: float = field(3600.0, "seconds that the owner's daemon may take for an answer", 0, LONGEST_WAIT, "(]")
    question: int = field(MOST_QUESTION, "bytes that a question may have; a longer one does not reach the owner", 1)
    folder: Path = Path()

    def __post_init__(self) -> None:
        _checked(self, SiteSettings)
        for name in ("client", "server"):
            if not getattr(self, name):
                raise BadValue(name, '""', "must be set", f'give it in site.toml: {name} = "…"')
        host, colon, port = self.server.rpartition(":")
        known = HOST.fullmatch(host) and _can_be_looked_up(host)
        if not (known and colon and port.isdecimal() and port.isascii() and 0 < int(port) < 65536):
            raise BadValue("server", self.server, 'must be "host:port"', 'as in "fl.example.org:9092"')
        _check_insecure(self.insecure, "server", host.strip("[]"))

    @property
    def owner(self) -> Path:
        """The socket of the owner's daemon."""
        return self.folder / self.socket


def placed(host: str, port: int) -> str:
    """ "host:port", with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server_settings(folder: Path) -> ServerSettings:
    """The settings in server.toml of a folder."""
    return _read(ServerSettings, folder, "server.toml")


def site_settings(folder: Path) -> SiteSettings:
    """The settings in site.toml of a folder."""
    return _read(SiteSettings, folder, "site.toml")


def _read(kind: type[S], folder: Path, name: str) -> S:
    path = folder / name
    try:
        there = path.is_file()
    except PermissionError as error:
        remedy = "run this as the user whom it belongs to"
        raise BadValue("folder", folder, f"cannot be entered ({error.strerror})", remedy) from None
    if not there:
        part = "server" if kind is ServerSettings else "clients/NAME/site"
        remedy = f"name the folder {part} of a project; `prifedsync deploy init DIR` makes one"
        raise BadValue("folder", folder, f"has no {name}", remedy)
    found = values(kind, file_values(str(path), path, name), "", kind)
    return kind(**found, folder=folder.resolve())


def _checked(settings: Any, kind: type[Any]) -> None:
    """Check all values, where each has its full dotted name."""
    given = {name: value for name, value in vars(settings).items() if name != "folder"}
    for name, value in values(kind, given, "", kind).items():
        object.__setattr__(settings, name, value)


def _can_be_looked_up(host: str) -> bool:
    """Whether a socket takes it for a host. One whose labels are empty or too long is an error there, and not an answer."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable()


def _check_insecure(insecure: bool, field: str, host: str) -> None:
    if insecure and host not in LOOPBACK:
        rule = f"cannot be combined with {field} = {host}: whoever is on the network could read and change everything"
        raise BadValue("insecure", "true", rule, "use it on 127.0.0.1 only, or set insecure = false")
