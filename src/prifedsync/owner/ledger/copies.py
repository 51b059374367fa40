"""Copies of a ledger, each one file, taken while it is in use."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from ...files import sync_folder
from ...values import BadValue
from .chain import Chain


def copy(chain: Chain, to: Path) -> None:
    """A copy, whole or not at all. A file that exists is not touched."""
    new = copied(chain, to)
    try:
        os.link(new, to)  # refuses if there is one, unlike a rename
    except FileExistsError:
        raise BadValue("backup", to, "exists already", "name a new file") from None
    finally:
        new.unlink()
    sync_folder(to.parent)


def copied(chain: Chain, beside: Path) -> Path:
    """A copy beside a path, on the disk, with a journal that leaves no second file."""
    new = beside.with_name(beside.name + ".new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        target = sqlite3.connect(new, isolation_level=None)
        try:
            chain.copy_into(target)
            target.execute("PRAGMA journal_mode = DELETE")
        finally:
            target.close()
        with new.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return new
