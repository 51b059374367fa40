"""The tables of a ledger, their version, and how an older ledger becomes one of this version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from ...values import BadValue

APPLICATION = 0x50465331  # "PFS1": what SQLite keeps in the file to say whose it is
VERSION = 1
ENTRIES = """
CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL);
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'an entry cannot be changed'); END;
CREATE TRIGGER entries_last BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'an entry cannot be removed'); END;
"""
DERIVED = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, document BLOB NOT NULL, text BLOB NOT NULL, plan_text TEXT NOT NULL, by TEXT NOT NULL,
    begun REAL NOT NULL, rounds INTEGER NOT NULL, attempts INTEGER NOT NULL, reply_queries INTEGER NOT NULL,
    round_cost REAL NOT NULL, spare_cost REAL NOT NULL, alone INTEGER NOT NULL, asked INTEGER NOT NULL,
    spare INTEGER NOT NULL,
    last_round INTEGER NOT NULL, last_attempt INTEGER NOT NULL, last_status TEXT NOT NULL, queries INTEGER NOT NULL,
    late INTEGER NOT NULL, open INTEGER NOT NULL, why TEXT NOT NULL, carried INTEGER NOT NULL
);
CREATE TABLE documents (run TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE replies (
    run TEXT NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, number INTEGER NOT NULL, question BLOB NOT NULL,
    status TEXT NOT NULL, queries INTEGER NOT NULL, scores TEXT NOT NULL, body BLOB, PRIMARY KEY (run, round, attempt)
);
CREATE TABLE states (run TEXT PRIMARY KEY, state BLOB NOT NULL, digest BLOB NOT NULL);
"""
Upgrade = Callable[[sqlite3.Connection], None]
UPGRADES: Mapping[int, Upgrade] = {}  # version → what makes its tables those of the next version


def make(connection: sqlite3.Connection) -> None:
    """The tables of this version, in an empty file. Part of the caller's transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in _statements(ENTRIES + DERIVED):
        connection.execute(statement)


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the tables, if this program can read or upgrade them."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION:
        raise BadValue("ledger", _path(connection), "is not a ledger", "name the file that `prifedsync ledger new` made")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        rule = f"has schema version {version}, and this program reads versions up to {VERSION}"
        raise BadValue("ledger", _path(connection), rule, "install the version of prifedsync that wrote it")
    return int(version)


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """The tables of this version in the place of older ones. Part of the caller's transaction."""
    for older in range(version, VERSION):
        if older not in UPGRADES:
            rule = f"has schema version {older}, which this program cannot read"
            raise BadValue("ledger", _path(connection), rule, "restore a backup")
        UPGRADES[older](connection)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def shape(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """All tables and triggers with the text that made them."""
    rows = connection.execute("SELECT type, name, ifnull(sql, '') FROM sqlite_master ORDER BY name")
    return [tuple(row) for row in rows]


def expected_shape() -> list[tuple[str, ...]]:
    """The shape of a new ledger."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        make(connection)
        return shape(connection)
    finally:
        connection.close()


def _statements(script: str) -> list[str]:
    """The statements of a script: `executescript` would commit the caller's transaction."""
    found: list[str] = []
    text = ""
    for line in script.strip().splitlines():
        text += line + "\n"
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


def _path(connection: sqlite3.Connection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2])
