"""The entries of a ledger: an SQLite file in which every entry has the hash of all entries before it.

WAL and `synchronous = FULL`: a transaction that was committed is on the disk. `secure_delete`: what is dropped is
overwritten. Several processes may have a ledger open. So the head is read inside each transaction.

The last head that was seen is remembered, only to look for it again: each transaction is refused if the file does not
contain it any more, or if another file lies in its place. Somebody has rolled the ledger back then.

The head leaves with each reply. Each entry has a secret salt, so that its hash says nothing about what is in it: whoever
knows all but one field of an entry could find that field by trying.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ...asking.questions import Head
from ...files import sync_folder
from ...values import BadValue
from . import schema

PATIENCE = 30.0  # seconds that a transaction waits for that of another process
PAGE = 65536  # bytes: replies are large, and a page of the log has a checksum of its own
SETTINGS = (
    "synchronous = FULL",
    "secure_delete = ON",
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "cache_size = -65536",  # KiB: a reply and a state fit in, which are written twice otherwise
)
SALT = 16  # bytes
START = bytes(32)  # stands for the hash before the first entry


class LedgerFailed(OSError):
    """The ledger could not be read or written. It is as it was before."""


class Entry(NamedTuple):
    """One entry. Its body is JSON, with sorted keys and without spaces."""

    number: int
    kind: str
    body: Mapping[str, Any]
    hash: bytes


def damaged(path: Path, what: str) -> BadValue:
    return BadValue("ledger", path, f"is damaged: {what}", "restore a backup: prifedsync ledger restore POLICY FILE")


def digest(*parts: bytes) -> bytes:
    """A digest of the parts, each behind its length."""
    found = hashlib.sha256()  # processors have instructions for it, and replies are large
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def canonical(value: object) -> str:
    """JSON that is the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _hash(number: int, kind: str, body: str, before: bytes) -> bytes:
    return digest(b"entry", number.to_bytes(8, "little"), kind.encode(), body.encode(), before)


def _file(path: Path) -> tuple[int, int] | None:
    """Which file lies at a path: a renamed one is another one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class Chain:
    """An open file of entries. `writing` is one transaction: all of it is on the disk, or nothing is."""

    def __init__(self, path: Path, readonly: bool = False) -> None:
        self.path = path
        self.readonly = readonly
        self._lock = threading.RLock()
        self._seen: Head | None = None  # the end of the ledger after the last transaction
        mode = "ro" if readonly else "rw"
        with self._failing():
            self.sql = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode={mode}",
                uri=True,
                isolation_level=None,
                timeout=PATIENCE,
                check_same_thread=False,
            )
            self.sql.text_factory = lambda raw: raw.decode(errors="replace")  # what is not text has no hash that fits
            for setting in SETTINGS:
                self.sql.execute(f"PRAGMA {setting}")
        self._file = _file(path)

    @staticmethod
    def make(path: Path, kind: str, body: Mapping[str, Any]) -> None:
        """A new file with its first entry, whole or not at all. A file that exists is not touched."""
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        try:
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            chain = Chain(new)
            try:
                chain.sql.execute(f"PRAGMA page_size = {PAGE}")
                chain.sql.execute("PRAGMA journal_mode = WAL")
                with chain.writing():
                    schema.make(chain.sql)
                    chain.append(kind, body)
            finally:
                chain.close()
            os.link(new, path)  # refuses if there is one, unlike a rename
        except FileExistsError:
            raise BadValue("ledger", path, "exists already", "a source of records has one ledger for ever") from None
        finally:
            for each in (new, new.with_name(new.name + "-wal"), new.with_name(new.name + "-shm")):
                each.unlink(missing_ok=True)
        sync_folder(path.parent)

    def close(self) -> None:
        self.sql.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Errors of SQLite as errors of this ledger: a damaged file is bad input, anything else a failure."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise LedgerFailed(f"the ledger {self.path} cannot be used now: {error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # a message of SQLite may quote what is no text
            raise damaged(self.path, str(error)) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that no other process writes beside. If anything fails, nothing of it has happened."""
        with self._lock, self._failing():
            self.sql.execute("BEGIN IMMEDIATE")
            try:
                self._check_forward()
                yield
                head = self.head()
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:
                    self.sql.execute("ROLLBACK")
                raise
            self._seen = head  # not earlier: what was not committed is not there to be found again
            self.sql.execute("PRAGMA shrink_memory")  # nobody reads a reply again soon

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One state of the ledger for all that is read inside, also inside of `writing`."""
        with self._lock, self._failing():
            if self.sql.in_transaction:
                yield
                return
            self.sql.execute("BEGIN")
            try:
                self._check_forward()
                yield
                self._seen = self.head()  # not earlier: whoever reads first checks that this is a ledger
            finally:
                self.sql.execute("ROLLBACK")

    def _check_forward(self) -> None:
        """Refuse a file that is behind what this process has seen of it."""
        if self._seen is None:
            return
        if _file(self.path) != self._file or self.hash_of(self._seen.number) != self._seen.hash:
            rule = f"was rolled back, or is another one: this process has seen its entry {self._seen.number}"
            remedy = "stop the daemon and restore a newer copy: prifedsync ledger restore POLICY FILE"
            raise BadValue("ledger", self.path, rule, remedy)

    def head(self) -> Head:
        """The last entry."""
        row = self.sql.execute("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        return Head(-1, START) if row is None else Head(*row)

    def append(self, kind: str, body: Mapping[str, Any]) -> Head:
        """One more entry, inside of `writing`."""
        assert self.sql.in_transaction
        last = self.head()
        text = canonical({**body, "salt": os.urandom(SALT).hex()})
        head = Head(last.number + 1, _hash(last.number + 1, kind, text, last.hash))
        self.sql.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (head.number, kind, text, head.hash))
        return head

    def hash_of(self, number: int) -> bytes | None:
        """The hash of one entry, or None if there is no such entry."""
        if not 0 <= number < 2**63:
            return None
        row = self.sql.execute("SELECT hash FROM entries WHERE number = ?", (number,)).fetchone()
        return None if row is None else bytes(row[0])

    def entry(self, number: int) -> Entry | None:
        """One entry, as it stands: `entries` checks hashes."""
        row = self.sql.execute("SELECT number, kind, body, hash FROM entries WHERE number = ?", (number,)).fetchone()
        return None if row is None else Entry(row[0], row[1], json.loads(row[2]), row[3])

    def copy_into(self, target: sqlite3.Connection) -> None:
        """All of the file as it is now, in an empty database."""
        with self._lock, self._failing():
            self.sql.backup(target)

    def empty_log(self) -> None:
        """Move the write-ahead log into the file and cut it, so that it holds no copy of what was dropped."""
        with self._lock, self._failing():
            self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def entries(self) -> Iterator[Entry]:
        """All entries from the first on, each checked against its hash and that of the entry before."""
        before = START
        expected = 0
        for number, kind, text, found in self.sql.execute("SELECT number, kind, body, hash FROM entries ORDER BY number"):
            well_typed = isinstance(kind, str) and isinstance(text, str)
            if number != expected or not well_typed or found != _hash(number, kind, text, before):
                raise damaged(self.path, f"entry {expected} is missing or was changed")
            yield Entry(number, kind, json.loads(text), found)
            before = found
            expected += 1
        if expected == 0:
            raise damaged(self.path, "it has no entries")
