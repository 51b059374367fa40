"""Files of a run: written whole, checked when they are read, in a folder that one process has to itself."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .values import BadValue

LOG, CONFIG = "rounds.jsonl", "config.toml"
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # how a file system says that it cannot sync a folder


def write_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write beside the path, make sure it is on the disk, then rename. `private`: only its owner may read it."""
    partly = path.with_name(path.name + ".new")
    try:
        with partly.open("wb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partly, path)
    except BaseException:
        partly.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Make sure that a rename is on the disk; a file system without such a call keeps its folders in its own way."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(folder)


def hashing(content: bytes | memoryview = b"") -> hashlib.blake2b:
    """A checksum to which more may be added."""
    return hashlib.blake2b(content, digest_size=16)


def checksum(content: bytes | memoryview) -> str:
    """Of stored bytes, against damage. It is not keyed: that of private values may stand in private files only."""
    return hashing(content).hexdigest()


def damaged(path: Path | None) -> BadValue:
    """The refusal of a file that is not as it was written."""
    return BadValue("checkpoint", path, "is damaged", "put back a copy of the run folder from before, or train anew")


@contextmanager
def claimed(folder: Path, new: bool) -> Iterator[Path]:
    """The run folder, for this process alone: two that worked in one would share their noise."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadValue("out" if new else "resume", folder, "is in use by another process", "wait for it") from None
        except OSError as error:
            rule = f"cannot be locked ({error.strerror}), and two processes that worked in it would share their noise"
            raise BadValue("out" if new else "resume", folder, rule, "use a folder on a local disk") from None
        if new and not not_begun(folder):
            raise BadValue("out", folder, "is not empty", f"name a new folder, or go on with it: --resume {folder}")
        try:
            yield folder
        finally:
            if new and not any(folder.iterdir()):
                folder.rmdir()  # refused before anything was begun
    finally:
        os.close(lock)


def not_begun(folder: Path) -> bool:
    """Whether it holds nothing but what a run leaves that was ended while it wrote its config."""
    return all(path.name == f"{CONFIG}.new" for path in folder.iterdir())


class RoundLog:
    """rounds.jsonl, or nothing where there is no folder."""

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
        """What is all on the disk now: a checkpoint that names this length may follow."""
        if self.file:
            os.fsync(self.file.fileno())
        return {"length": self.length, "checksum": self.hashing.hexdigest()}


@contextmanager
def round_log(folder: Path | None, saved: dict[str, Any] | None) -> Iterator[RoundLog]:
    """The log of rounds, cut back to the last checkpoint."""
    if folder is None:
        yield RoundLog(None)
        return
    path = folder / LOG
    written = path.read_bytes()[: saved["length"]] if saved and path.is_file() else b""
    if saved and len(written) < saved["length"]:
        raise BadValue("resume", folder, f"has lost lines of {LOG}", "train anew")
    if saved and checksum(written) != saved["checksum"]:
        raise damaged(path)
    with path.open("ab") as file:
        file.truncate(len(written))
        file.seek(len(written))
        yield RoundLog(file, written)
