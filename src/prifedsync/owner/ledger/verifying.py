"""The whole ledger against itself: every entry, every row, every reply, and the anchor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...asking.questions import Head
from ...values import BadValue
from .anchor import Anchor, not_behind
from .books import REPLY, Books, checked_books, is_charged
from .chain import Chain, damaged, digest


@dataclass(frozen=True)
class Verified:
    """What was found to agree."""

    source: str
    head: Head
    runs: int
    replies: int  # that were charged
    bodies: int  # of replies that are still stored
    anchored: int | None  # the entry that the anchor has seen; None without an anchor


def verify(path: Path, anchor: Path | None) -> Verified:
    """Read all of a ledger. Refused if anything was changed, is missing, or is behind the anchor."""
    if not path.is_file():
        raise BadValue("ledger", path, "does not exist", "name the file of a ledger")
    chain = Chain(path, readonly=True)
    try:
        with chain.reading():
            books = checked_books(chain)
            _check_pages(chain)
            _check_documents(chain, books)
            _check_states(chain, books)
            bodies = _check_replies(chain, books)
            seen = not_behind(chain, anchor)
            if seen is not None and not _same(seen, books):
                raise BadValue("anchor", anchor, "is the anchor of another ledger", "name the anchor of this one")
            return Verified(
                source=books.source,
                head=chain.head(),
                runs=len(books.runs),
                replies=len(books.charged),
                bodies=bodies,
                anchored=None if seen is None else seen.number,
            )
    finally:
        chain.close()


def _same(anchor: Anchor, books: Books) -> bool:
    return (anchor.source, anchor.unit, anchor.protected) == (books.source, books.unit, books.protected)


def _check_pages(chain: Chain) -> None:
    (found,) = chain.sql.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise damaged(chain.path, str(found))


def _check_documents(chain: Chain, books: Books) -> None:
    texts = dict(chain.sql.execute("SELECT run, text FROM documents"))
    changed = [name for name, run in books.runs.items() if digest(str(texts.get(name)).encode()) != run.text]
    if changed or len(texts) != len(books.runs):
        raise damaged(chain.path, "the table of documents was changed")


def _check_states(chain: Chain, books: Books) -> None:
    for run, state, checksum in chain.sql.execute("SELECT run, state, digest FROM states"):
        known = books.runs.get(run)
        if known is None or not known.open or not isinstance(state, bytes) or digest(state) != checksum:
            raise damaged(chain.path, f"the state of the run {run} was changed")
    with_state = {run for (run,) in chain.sql.execute("SELECT run FROM states")}
    if any(run.open and run.last_round >= 0 and name not in with_state for name, run in books.runs.items()):
        raise damaged(chain.path, "the state of a run is missing")


def _check_replies(chain: Chain, books: Books) -> int:
    """The number of bodies that are stored, if every reply is one that was charged, and none is missing."""
    seen: set[int] = set()
    bodies = 0
    for run, round, attempt, *reply in chain.sql.execute(f"SELECT run, round, attempt, {REPLY} FROM replies"):
        entry = books.charged.get(reply[0])
        known = books.runs.get(run)
        stored = reply[-1] is not None
        if entry is None or known is None or stored != known.open or not is_charged(entry, (run, round, attempt), reply):
            raise damaged(chain.path, f"the reply of round {round}, attempt {attempt} of the run {run} was changed")
        seen.add(reply[0])
        bodies += stored
    if seen != set(books.charged):
        raise damaged(chain.path, "a reply that was charged is missing")
    return bodies
