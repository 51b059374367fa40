"""The owner's log: what nobody else may read. It is a file of mode 0600, and nothing of it goes to the terminal."""

from __future__ import annotations

import json
import os
import traceback
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

MOST_BYTES = 10 * 2**20
KEPT = 5


class OwnerLog:
    """One JSON object a line, with the time, so that no text can look like a line of its own.

    When the file would grow beyond `most_bytes`, it becomes owner.log.1, that one owner.log.2, and so on up to `kept`.
    A line that cannot be written (a full disk, say) is counted, and the next line that can be says so: a log that fails
    must not decide whether a question is answered.
    """

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self.kept = kept
        self.lost = 0  # lines that could not be written since the last one that could
        self._lock = Lock()
        self._file = self._opened()

    def info(self, text: str, **values: Any) -> None:
        """A line about what happened."""
        self._write("info", text, values)

    def warning(self, text: str, **values: Any) -> None:
        """A line about what the owner should look at."""
        self._write("warning", text, values)

    def exception(self, text: str, **values: Any) -> None:
        """A line with the exception that is being handled. It may hold values of records, which belong here alone."""
        self._write("error", text, {**values, "traceback": traceback.format_exc()})

    def reopen(self) -> None:
        """Go on in a file of the path's name, for whoever has renamed the last one."""
        with self._lock:
            fresh = self._opened()
            os.close(self._file)
            self._file = fresh

    def close(self) -> None:
        """No line can be written afterwards."""
        with self._lock:
            os.close(self._file)
            self._file = -1  # the old number may soon be that of a socket

    def _opened(self) -> int:
        """The file, private from its first byte."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o600)
        os.fchmod(file, 0o600)
        return file

    def _write(self, level: str, text: str, values: dict[str, Any]) -> None:
        with self._lock:
            said = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "text": text, **values}
            if self.lost:
                said["lines lost before"] = self.lost
            try:
                self._append(json.dumps(said, default=str).encode() + b"\n")
                self.lost = 0
            except OSError:
                self.lost += 1

    def _append(self, line: bytes) -> None:
        if os.fstat(self._file).st_size + len(line) > self.most_bytes:
            self._rotate()
        before = os.fstat(self._file).st_size
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full: half a line would spoil the next one
            os.ftruncate(self._file, before)
            raise OSError("the line was not written whole")

    def _rotate(self) -> None:
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{number}") for number in range(1, self.kept + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                os.replace(newer, older)
        fresh = self._opened()
        os.close(self._file)
        self._file = fresh
