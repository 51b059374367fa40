"""Files that nobody but their owner may read or change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..values import BadValue

SUPERUSER = 0


def check_private(field: str, path: Path) -> None:
    """Refuse a file that other users may read or change, also by way of its folder; and one that this user cannot read."""
    file = path.stat()
    if stat.S_IMODE(file.st_mode) & 0o077:
        rule = f"may be read or changed by other users (mode {stat.S_IMODE(file.st_mode):o})"
        raise BadValue(field, path, rule, f"chmod 600 {path}")
    remedy = f"chown it to the user who runs this: chown {os.geteuid()} {path}"
    if not _trusted(file.st_uid):
        raise BadValue(field, path, "belongs to another user", remedy)
    if not os.access(path, os.R_OK):  # the superuser made it in this user's place, for instance
        raise BadValue(field, path, "cannot be read by the user who runs this", remedy)
    for folder in (path.parent.resolve(), path.resolve().parent):  # of a link, and of the file that it leads to
        above = folder.stat()
        shared = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if shared or not _trusted(above.st_uid):
            rule = f"lies in a folder that other users may change ({folder})"
            raise BadValue(field, path, rule, f"chmod go-w {folder}, and let it belong to the user who runs this")


def check_hidden(field: str, path: Path) -> None:
    """Refuse a file whose size and times other users may see: these tell when a training was ready, and what failed."""
    folders = (path.resolve().parent, *path.resolve().parent.parents)
    if all(folder.stat().st_mode & 0o011 for folder in folders):
        rule = f"lies in a folder that other users may enter ({folders[0]}), who would see when it changes"
        raise BadValue(field, path, rule, f"chmod 700 {folders[0]}, and name files.socket in another folder")


def _trusted(user: int) -> bool:
    """Whether a file of this user is one's own, or the superuser's. The superuser may look at everybody's."""
    return os.geteuid() in (user, SUPERUSER) or user == SUPERUSER
