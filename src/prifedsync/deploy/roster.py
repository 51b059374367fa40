"""The roster of a server: its clients, and the public keys of their SuperNodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from ..events import Note, Watch
from ..owner.permissions import check_private
from ..values import NOT_GIVEN, BadValue
from .authority import check_valid
from .nodes import check_public_line
from .places import ServerPlaces
from .settings import ServerSettings


def roster(folder: Path) -> dict[str, bytes]:
    """The clients' names, and the public keys of their SuperNodes, as they are now.

    One that this user cannot read is empty, which is no key: a run that is under way goes on with the key that it knows.
    """
    found = {}
    for path in sorted(folder.glob("*.pub")):
        with suppress(FileNotFoundError):  # it was removed just now
            found[unquote(path.stem)] = _line(path)
    return found


def _line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        return b""


def check_files(settings: ServerSettings, places: ServerPlaces) -> None:
    """Refuse a folder that lacks a file, or whose certificate no client would take now."""
    keys = () if settings.insecure else (places.key, places.certificate, places.authority)
    for path in (places.config, places.preprocessing, places.secret, *keys):
        if not path.is_file():
            raise BadValue("server", path, "is not there", "`prifedsync deploy init` made it: copy the whole folder")
    if not settings.insecure:
        for certificate in (places.certificate, places.authority):
            check_valid(certificate)


def check_roster(settings: ServerSettings, places: ServerPlaces, names: Sequence[str], watch: Watch) -> None:
    """Refuse keys that cannot be told apart, or that others may use; say who cannot come."""
    check_private("tasks.secret", places.secret)
    if settings.insecure:
        return
    check_private("tls/server.key", places.key)
    found = roster(places.nodes)
    owner_of: dict[bytes, str] = {}
    for name, key in found.items():
        field = f"nodes/{quote(name, safe='')}.pub"
        path = places.folder / field
        if path.exists() and not os.access(path, os.R_OK):
            raise BadValue(field, path, "cannot be read by the user who runs this", f"chmod go+r {path}")
        check_public_line(field, key)
        if key.split()[1] in owner_of:
            rule = f"is the key of client {owner_of[key.split()[1]]} too"
            raise BadValue(field, NOT_GIVEN, rule, "ask each client for its own")
        owner_of[key.split()[1]] = name
    for name in [each for each in names if each not in found]:
        watch(Note(f"client {name} has no key in nodes/ yet, and cannot come without", warning=True))
    for name in [each for each in found if each not in names]:
        watch(Note(f"nodes/ has a key of {name}, which is not a client of config.toml", warning=True))
