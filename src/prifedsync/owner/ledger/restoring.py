"""A backup in the place of a ledger: it goes forward, or what may have been lost is counted as spent."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...accounting import Budget
from ...files import sync_folder
from ...values import BadValue
from .anchor import Anchor
from .book import RECORDS, Ledger
from .books import checked_books
from .chain import Chain, LedgerFailed
from .copies import copied
from .protected import Protected
from .verifying import verify

CONFIRM = "--confirm-loss"


@dataclass(frozen=True)
class Restored:
    """What a restore has done. After a loss, runs that were open are closed and all that was committed is spent."""

    lost: bool
    closed: tuple[str, ...]


def restore(
    path: Path,
    backup: Path,
    *,
    source: str,
    budget: Budget,
    anchor: Path | None,
    protected: Protected = RECORDS,
    confirm_loss: bool = False,
) -> Restored:
    """Put a backup in the place of the ledger. No process may have the ledger open.

    If it contains all that the anchor and the present ledger have seen, it is taken as it is. Otherwise entries are lost,
    and nobody knows which slots were answered. Then, if the owner confirms it, all open runs are closed, and the largest
    amount that any of the three has committed is carried over as spent.
    """
    if not backup.is_file():
        raise BadValue("backup", backup, "does not exist", "name a file that `prifedsync ledger backup` made")
    kept: dict[str, Any] = {"source": source, "budget": budget, "protected": protected}
    known = _known_elsewhere(path, anchor, kept)
    new = _copy_of(backup, path)
    try:
        with Ledger.open_unanchored(new, **kept, anchor=None) as copy:  # upgraded, if it is an older one
            verify(new, None)
            lost = not known or any(not copy.knows(each.head) for each in known)
            if lost and not confirm_loss:
                raise _behind(backup, known)
            closed = _carry_over(copy, known) if lost else ()
        _replace(path, new)
    finally:
        new.unlink(missing_ok=True)
    with Ledger.open_unanchored(path, **kept, anchor=anchor) as ledger:
        ledger.write_anchor()
    return Restored(lost, closed)


def _copy_of(backup: Path, path: Path) -> Path:
    chain = Chain(backup, readonly=True)
    try:
        return copied(chain, path)
    finally:
        chain.close()


def _behind(backup: Path, known: Sequence[Anchor]) -> BadValue:
    newest = max((each.number for each in known), default=None)
    seen = "nothing else says what came after it" if newest is None else f"entry {newest} was seen since"
    remedy = f"restore a newer copy; if there is none, add {CONFIRM}, which counts all that was reserved as spent"
    return BadValue("backup", backup, f"may be behind: {seen}", remedy)


def _known_elsewhere(path: Path, anchor: Path | None, kept: Mapping[str, Any]) -> list[Anchor]:
    """What the anchor, and the present ledger if it can be read, have seen. Refused if they are kept for anything else."""
    seen = Anchor.read(anchor) if anchor is not None else None
    if seen is not None:
        seen.check(**kept)
    found = [] if seen is None else [seen]
    if path.is_file() and _readable(path):
        with Ledger.open_unanchored(path, **kept, anchor=None, readonly=True) as present:
            found.append(present.as_anchor())
    return found


def _readable(path: Path) -> bool:
    """Whether the present ledger is whole. If it is damaged, that is why a backup is restored."""
    try:
        chain = Chain(path, readonly=True)
    except (BadValue, LedgerFailed):
        return False
    try:
        with chain.reading():
            checked_books(chain)
    except (BadValue, LedgerFailed):
        return False
    finally:
        chain.close()
    return True


def _carry_over(copy: Ledger, known: Sequence[Anchor]) -> tuple[str, ...]:
    """Close what was open in the copy, and count as spent the most that anybody has seen committed."""
    seen = [*known, copy.as_anchor()]
    committed = max(each.committed for each in seen)
    return copy.carry_over(committed, any(each.alone for each in seen))


def _replace(path: Path, new: Path) -> None:
    """Put the new file in the place of the old one. The log of the old one must go first: it is not of the new file."""
    if path.exists():
        _check_unused(path)
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    os.replace(new, path)
    sync_folder(path.parent)
    _set_journal(path, "WAL")


def _check_unused(path: Path) -> None:
    """Refuse a file that somebody has open. One that is no database any more cannot be open as one."""
    try:
        _set_journal(path, "DELETE")  # SQLite allows this to the only user of a file
    except sqlite3.OperationalError as error:
        raise BadValue("ledger", path, f"is in use ({error})", "stop the daemon first") from None
    except sqlite3.DatabaseError:
        return


def _set_journal(path: Path, mode: str) -> None:
    database = sqlite3.connect(path, isolation_level=None, timeout=1.0)
    try:
        database.execute(f"PRAGMA journal_mode = {mode}").fetchone()
    finally:
        database.close()
