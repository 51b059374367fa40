"""The files of a run: written atomically, checked when they are read, in a folder that only one process may use."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

from .values import BadValue

LOG = "rounds.jsonl"
CONFIG = "config.toml"
RECORD = "record.json"  # written last: a folder that has it holds a finished run
REPORT = "report.html"  # for people
EVENTS = "events"  # a folder for TensorBoard
PREPROCESSING = "preprocessing.json"  # the public rules that turn raw rows into records
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # errors of file systems that cannot sync a folder


def write_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write to a temporary file, sync it to the disk, then rename it. `private`: only its owner may read the file."""
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def keep_dated(path: Path, today: date | None = None) -> Path:
    """Give a file a second name, which has the date in it, before another file takes its place."""
    day = (today or date.today()).isoformat()
    number = 1
    name = path.with_name(f"{path.name}.{day}")
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.{day}.{number}")
    os.link(path, name)
    return name


def sync_folder(path: Path) -> None:
    """Sync a rename to the disk. Some file systems have no such call; there nothing more can be done."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(folder)


def hashing(content: bytes | memoryview = b"") -> hashlib.blake2b:
    """A running checksum."""
    return hashlib.blake2b(content, digest_size=16)


def checksum(content: bytes | memoryview) -> str:
    """A checksum of stored bytes, against damage. It has no key, so checksums of private values belong in private files."""
    return hashing(content).hexdigest()


def damaged(path: Path | None) -> BadValue:
    """The error for a file that is not as it was written."""
    remedy = "restore an earlier copy of the run folder, or start a new run"
    return BadValue("checkpoint", path, "is damaged", remedy)


@contextmanager
def claimed(folder: Path, new: bool, field: str = "resume") -> Iterator[Path]:
    """Lock the run folder for this process: two processes in one folder would add the same noise.

    field: what a refusal is about where the folder is not new.
    """
    field = "out" if new else field
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            rule = "is in use by another process"
            raise BadValue(field, folder, rule, "wait until it has ended") from None
        except OSError as error:
            rule = f"cannot be locked ({error.strerror}), and two processes in one folder would add the same noise"
            raise BadValue(field, folder, rule, "use a folder on a local disk") from None
        if new and not not_begun(folder):
            remedy = f"name a new folder, or resume the run: --resume {folder}"
            raise BadValue("out", folder, "is not empty", remedy)
        try:
            yield folder
        finally:
            if new and not any(folder.iterdir()):
                folder.rmdir()  # the run was refused before it began
    finally:
        os.close(lock)


def not_begun(folder: Path) -> bool:
    """Whether the folder is empty, but for the file of a run that was killed while it wrote its config."""
    return all(path.name == f"{CONFIG}.new" for path in folder.iterdir())


class RoundLog:
    """The log rounds.jsonl. Without a folder, nothing is written."""

    def __init__(self, file: BinaryIO | None, written: bytes = b"") -> None:
        self.file = file
        self.length = len(written)
        self.hashing = hashing(written)

    def append(self, line: dict[str, Any]) -> None:
        if self.file:
            content = json.dumps(line, allow_nan=False).encode() + b"\n"
            self.file.write(content)
            self.file.flush()
            self.length += len(content)
            self.hashing.update(content)

    def synced(self) -> dict[str, Any]:
        """Sync the log to the disk, and return its length and checksum for the next checkpoint."""
        if self.file:
            os.fsync(self.file.fileno())
        return {"length": self.length, "checksum": self.hashing.hexdigest()}


@contextmanager
def round_log(folder: Path | None, saved: dict[str, Any] | None) -> Iterator[RoundLog]:
    """The log of rounds, truncated to what the last checkpoint has saved."""
    if folder is None:
        yield RoundLog(None)
        return
    path = folder / LOG
    written = path.read_bytes()[: saved["length"]] if saved and path.is_file() else b""
    if saved and len(written) < saved["length"]:
        remedy = "restore a copy of the run folder, or start a new run"
        raise BadValue("resume", folder, f"has lost lines of {LOG}", remedy)
    if saved and checksum(written) != saved["checksum"]:
        raise damaged(path)
    with path.open("ab") as file:
        file.truncate(len(written))
        file.seek(len(written))
        yield RoundLog(file, written)
