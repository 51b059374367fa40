"""The socket of an owner: who may connect, and that one daemon alone has the ledger."""

from __future__ import annotations

import fcntl
import os
import pwd
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..values import BadValue
from .permissions import check_hidden
from .policy import Policy

CREDENTIALS = struct.Struct("3i")  # of a peer: process, user, group
BACKLOG = 64
MODE = 0o660  # the folder says who comes as far as the socket, and the daemon whom it answers


@contextmanager
def only_daemon(ledger: Path) -> Iterator[None]:
    """Be the only daemon of this ledger: two would answer one slot with two kinds of noise."""
    lock = os.open(ledger.with_name(ledger.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadValue("files.ledger", ledger, "is served by another daemon", "end that one first") from None
        yield
    finally:
        os.close(lock)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at this path that accepts connections; the file is gone afterwards."""
    _check_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~MODE)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        remedy = "name a path in a folder where this user may write"
        raise BadValue("files.socket", path, f"cannot be made ({error})", remedy) from None
    finally:
        os.umask(before)
    try:
        listener.listen(BACKLOG)
        yield listener
    finally:
        path.unlink(missing_ok=True)
        listener.close()


def _check_free(path: Path) -> None:
    """Remove a socket that a daemon left behind; refuse one on which somebody listens, and any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadValue("files.socket", path, "exists and is not a socket", "name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise BadValue("files.socket", path, f"is in use ({error})", "name another path") from None
    raise BadValue("files.socket", path, "is in use by another process", "end that process, or name another path")


def user_ids(users: Sequence[str]) -> frozenset[int]:
    """The users who may ask, by name or number; nobody named: this process's own user."""
    return frozenset(_user_id(user) for user in users) or frozenset({os.geteuid()})


def askers(policy: Policy) -> frozenset[int]:
    """The users who may ask. Refused if somebody else is among them who may look into the folder of the ledger."""
    users = user_ids(policy.users)
    if users != {os.geteuid()}:
        for field, path in policy.secrets().items():
            check_hidden(field, path)
    return users


def _user_id(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        if user.isdecimal():
            return int(user)
        raise BadValue("users", user, "is not a user of this machine", "make the user, or correct the name") from None


def peer_user(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(found)[1]
    return user


def user_name(user: int) -> str:
    """How a user is called in the ledger."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
