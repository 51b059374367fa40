"""Where clients reach the server of a project: names or addresses that stand in its certificate, and a port."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from ..values import BadValue, whole
from .settings import LOOPBACK, placed

ALWAYS = ("127.0.0.1", "::1", "localhost")  # the server's own processes reach it so
LONGEST_HOST = 253  # characters
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How clients reach the server.

    hosts     names or addresses; the first is what clients are told.
    insecure  without TLS and keys, on one machine.
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 9092
    insecure: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(checked_host(host) for host in self.hosts))
        whole("port", self.port, 1, 65535)
        for host in self.hosts:
            if self.insecure and host not in LOOPBACK:
                rule = "cannot be combined with --insecure: whoever is on the network could read and change everything"
                raise BadValue("host", host, rule, "leave out --insecure, or name 127.0.0.1 only")

    @property
    def place(self) -> str:
        """What clients are told."""
        return placed(self.hosts[0], self.port)

    @property
    def listen(self) -> str:
        """The address that the server listens on: by IPv6 if what clients are told is such an address, else by IPv4."""
        by_ipv6 = ":" in self.hosts[0]
        if any(host not in LOOPBACK for host in self.hosts):
            return "::" if by_ipv6 else "0.0.0.0"
        return "::1" if by_ipv6 else "127.0.0.1"


def is_address(host: str) -> bool:
    """Whether it is an IP address, and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def checked_host(host: str) -> str:
    """The host without brackets; refused if no client could reach it."""
    bare = host.strip().removeprefix("[").removesuffix("]")
    if is_address(bare):
        if ip_address(bare).is_unspecified or ip_address(bare).is_multicast or "%" in bare:  # a zone is one machine's own
            remedy = "name the address or name by which clients reach the server"
            raise BadValue("host", host, "is no address that a client can reach", remedy)
        return bare
    labels = bare.split(".")
    if len(bare) > LONGEST_HOST or not all(LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        rule = "must be a host name in ASCII or an IP address, without a port"
        raise BadValue("host", host, rule, "as in --host fl.example.org; the port is --port")
    return bare
