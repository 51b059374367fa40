"""Files that nobody but their owner may read or change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..values import BadValue

SUPERUSER = 0


def check_private(field: str, path: Path) -> None:
    """Refuse a file that other users may read, or may change themselves or by way of its folder."""
    file = path.stat()
    if stat.S_IMODE(file.st_mode) & 0o077:
        rule = f"may be read or changed by other users (mode {stat.S_IMODE(file.st_mode):o})"
        raise BadValue(field, path, rule, f"chmod 600 {path}")
    if not _trusted(file.st_uid):
        remedy = f"chown it to the user who runs this: chown {os.geteuid()} {path}"
        raise BadValue(field, path, "belongs to another user", remedy)
    for folder in (path.parent.resolve(), path.resolve().parent):  # of a link, and of the file that it leads to
        above = folder.stat()
        shared = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if shared or not _trusted(above.st_uid):
            rule = f"lies in a folder that other users may change ({folder})"
            raise BadValue(field, path, rule, f"chmod go-w {folder}, and let it belong to the user who runs this")


def _trusted(user: int) -> bool:
    """Whether a file of this user is one's own, or the superuser's. The superuser may look at everybody's."""
    return os.geteuid() in (user, SUPERUSER) or user == SUPERUSER
