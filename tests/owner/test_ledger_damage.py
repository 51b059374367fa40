"""Somebody edits, cuts, swaps or rolls back the files of a ledger; backups and what a restore carries over."""

import json
import os
import random
import shutil
import sqlite3
from dataclasses import replace

import pytest

from prifedsync.accounting import Budget
from prifedsync.asking.questions import Head
from prifedsync.owner.ledger import Anchor, Ledger, Protected, check_receipt, restore, signed, verify
from prifedsync.values import BadValue

from .ledgers import Site, charge, plan_of, reserve
from .test_ledger import LONG

FLIPS = int(os.environ.get("PRIFEDSYNC_FLIPS", "40"))


@pytest.fixture
def site(tmp_path):
    """A ledger with an open run of three replies and a closed one, in one file."""
    site = Site(tmp_path)
    ledger = site.new()
    reserve(ledger, "a")
    reserve(ledger, "b", plan_of(0.1, rounds=2))
    for round in range(3):
        charge(ledger, "a", round, body=b"body %d" % round)
    charge(ledger, "b")
    ledger.note_late("b")
    ledger.close("b", "over")
    ledger.chain.empty_log()
    ledger.close_file()
    return site


def edited(site, *statements):
    """Change the file as somebody who may write it would, and leave the triggers as they were."""
    sql = sqlite3.connect(site.path, isolation_level=None)
    triggers = sql.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        sql.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert sql.execute(statement).rowcount != 0, statement
    for _, text in triggers:
        sql.execute(text)
    sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    sql.close()


EDITS = {
    "an entry": "UPDATE entries SET body = replace(body, 'asker', 'asked') WHERE number = 2",
    "a kind": "UPDATE entries SET kind = 'late' WHERE number = 3",
    "a hash": "UPDATE entries SET hash = zeroblob(32) WHERE number = 3",
    "the first entry": "UPDATE entries SET body = replace(body, 'clinic', 'clinik') WHERE number = 0",
    "an entry in the middle is gone": "DELETE FROM entries WHERE number = 4",
    "the last entry is gone": "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",
    "the count of a run": "UPDATE runs SET asked = 0 WHERE run = 'a'",
    "the cost of a run": "UPDATE runs SET round_cost = round_cost / 2 WHERE run = 'a'",
    "a closed run is open": "UPDATE runs SET open = 1 WHERE run = 'b'",
    "a run is gone": "DELETE FROM runs WHERE run = 'b'",
    "a run is new": "INSERT INTO runs SELECT 'c', document, text, plan_text, by, begun, rounds, attempts, reply_queries, "
    "round_cost, spare_cost, alone, 0, 0, -1, -1, '', 0, 0, 1, '', 0 FROM runs WHERE run = 'a'",
    "the schema": "CREATE TABLE more (x)",
    "the version": "PRAGMA user_version = 0",
}  # fmt: skip
DEEP = {
    "a reply": "UPDATE replies SET body = x'00' WHERE run = 'a' AND round = 1",
    "a question": "UPDATE replies SET question = zeroblob(32) WHERE run = 'a' AND round = 1",
    "scores": "UPDATE replies SET scores = '{}' WHERE run = 'a' AND round = 1",
    "a slot": "UPDATE replies SET round = 9 WHERE run = 'a' AND round = 1",
    "a status": "UPDATE replies SET status = 'absent' WHERE run = 'a' AND round = 1",
    "queries": "UPDATE replies SET queries = 0 WHERE run = 'a' AND round = 1",
    "the entry of a reply": "UPDATE replies SET number = 3 WHERE run = 'a' AND round = 1",
    "a reply is gone": "DELETE FROM replies WHERE run = 'a' AND round = 1",
    "a body is gone": "UPDATE replies SET body = NULL WHERE run = 'a' AND round = 1",
    "a document": "UPDATE documents SET text = '{}' WHERE run = 'b'",
    "a document is gone": "DELETE FROM documents WHERE run = 'b'",
    "a state": "UPDATE states SET state = x'00'",
    "a state is gone": "DELETE FROM states",
}


def test_the_site_is_whole(site):
    found = verify(site.path, site.anchor)
    assert (found.source, found.head.number, found.runs, found.replies, found.bodies) == ("clinic", 8, 2, 4, 3)
    assert found.anchored == 8


@pytest.mark.parametrize("statement", EDITS.values(), ids=EDITS)
def test_an_edit_is_seen_when_the_ledger_is_opened(site, statement):
    edited(site, statement)
    with pytest.raises(BadValue, match=r"is damaged|is behind its anchor|has schema version"):
        site.open()
    with pytest.raises(BadValue, match=r"is damaged|is behind its anchor|has schema version"):
        verify(site.path, site.anchor)


def test_the_last_entry_with_all_that_follows_from_it_is_seen_by_the_anchor(site):
    """Consistent in itself: as if the run had never been closed."""
    edited(
        site,
        "DELETE FROM entries WHERE number = 8",
        "UPDATE runs SET open = 1, why = '' WHERE run = 'b'",
        "UPDATE replies SET body = x'7265706c79' WHERE run = 'b'",
    )
    with pytest.raises(BadValue, match="is behind its anchor, or is another one: the anchor has seen entry 8"):
        site.open()


@pytest.mark.parametrize("statement", DEEP.values(), ids=DEEP)
def test_an_edit_of_other_tables_is_seen_by_verify(site, statement):
    edited(site, statement)
    with pytest.raises(BadValue, match="is damaged"):
        verify(site.path, site.anchor)


@pytest.mark.parametrize("edit", ["a reply", "scores", "a question", "a status", "the entry of a reply"])
def test_a_changed_reply_never_leaves(site, edit):
    edited(site, DEEP[edit])
    ledger = site.open()
    with pytest.raises(BadValue, match="the reply of round 1, attempt 0 of the run a was changed"):
        ledger.stored("a", 1, 0)
    assert ledger.stored("a", 2, 0).body == b"body 2"
    ledger.close_file()


def test_a_changed_state_or_document_is_not_used(site):
    edited(site, DEEP["a state"], DEEP["a document"])
    ledger = site.open()
    with pytest.raises(BadValue, match="the state of the run a was changed"):
        ledger.state("a")
    with pytest.raises(BadValue, match="the document of the run b is missing or was changed"):
        ledger.document("b")
    ledger.close_file()


def test_entries_cannot_be_changed_by_accident(site):
    sql = sqlite3.connect(site.path)
    for statement in ("UPDATE entries SET kind = 'x'", "DELETE FROM entries"):
        with pytest.raises(sqlite3.IntegrityError, match="an entry cannot be"):
            sql.execute(statement)
    sql.close()


def content(path):
    """All rows of all tables."""
    sql = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = ("entries", "runs", "documents", "replies", "states", "sqlite_master")
        return {table: sql.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    finally:
        sql.close()


def test_flipped_bits_are_seen_or_change_nothing(site, tmp_path):
    """Bits in free space change no row. Every other flip is refused by `verify`."""
    whole = site.path.read_bytes()
    rows = content(site.path)
    used = [place for place, byte in enumerate(whole) if byte]
    draw = random.Random(0)
    copy = tmp_path / "copy.db"
    seen = 0
    for _ in range(FLIPS):
        place = draw.choice(used)
        copy.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
        try:
            verify(copy, site.anchor)
        except (BadValue, OSError):
            seen += 1
        else:
            assert content(copy) == rows, place
    assert seen > FLIPS // 2


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 0.9, 0.999])
def test_a_cut_file_is_refused(site, share):
    whole = site.path.read_bytes()
    site.path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises((BadValue, OSError), match="ledger"):
        verify(site.path, site.anchor)


def test_a_file_that_is_no_ledger_is_refused(site):
    site.path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(BadValue, match="is damaged"):
        site.open()
    site.path.unlink()
    sqlite3.connect(site.path).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(BadValue, match="is not a ledger"):
        site.open()


def test_a_swapped_ledger_of_the_same_source_is_seen_by_the_anchor(site, tmp_path):
    other = Site(tmp_path / "other")
    other.folder.mkdir()
    twin = other.new()
    for run in "abcdefghi":
        reserve(twin, run, plan_of(0.01))
    twin.close_file()
    shutil.copy(other.path, site.path)
    with pytest.raises(BadValue, match="is behind its anchor, or is another one"):
        site.open()


def test_a_copy_rolled_back_behind_the_anchor_is_refused(site, tmp_path):
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    charge(ledger, "a", 3)
    ledger.close_file()
    shutil.copy(tmp_path / "early.db", site.path)
    with pytest.raises(BadValue, match="is behind its anchor"):
        site.open()
    site.anchored = False
    site.open().close_file()  # without an anchor nobody can tell: an asker's echo of a later head would


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff\xfe"])
def test_a_damaged_or_missing_anchor_is_refused(site, damage):
    text = site.anchor.read_bytes()
    site.anchor.write_bytes(damage)
    with pytest.raises(BadValue, match=r"anchor = .* is damaged"):
        site.open()
    site.anchor.write_bytes(text.replace(b'"committed":0', b'"committed":1'))
    with pytest.raises(BadValue, match=r"anchor = .* is damaged"):
        site.open()
    site.anchor.unlink()
    with pytest.raises(BadValue, match=r"anchor = .* does not exist, and the policy names it"):
        site.open()


def test_entries_after_the_anchor_are_covered_when_the_ledger_is_opened(site):
    """The power failed between the commit and the anchor."""
    before = site.anchor.read_bytes()
    ledger = site.open()
    charge(ledger, "a", 3)
    ledger.close_file()
    site.anchor.write_bytes(before)
    site.open(readonly=True).close_file()
    assert site.anchor.read_bytes() == before
    site.open().close_file()
    assert Anchor.read(site.anchor).number == 9


# ---------------------------------------------------------------------- rolled back while it is open


WRITES = {
    "charge": lambda ledger: charge(ledger, "a", 4),
    "reserve": lambda ledger: reserve(ledger, "c", plan_of(0.01)),
    "reserve again": lambda ledger: reserve(ledger, "a"),
    "keep": lambda ledger: ledger.keep("a", b"state"),
    "close": lambda ledger: ledger.close("a", "over"),
    "close_old": lambda ledger: ledger.close_old(-1.0),
    "note_late": lambda ledger: ledger.note_late("a"),
}
READS = {
    "stored": lambda ledger: ledger.stored("a", 0, 0),
    "run": lambda ledger: ledger.run("a"),
    "head": lambda ledger: ledger.head,
    "knows": lambda ledger: ledger.knows(Head(0, b"")),
    "covers_next": lambda ledger: ledger.covers_next("a", 0),
    "state": lambda ledger: ledger.state("a"),
}


def put_back(path, early):
    """The pages of an early copy in the place of the present ones, as SQLite's own backup writes them."""
    source, target = sqlite3.connect(early), sqlite3.connect(path)
    source.backup(target)
    source.close()
    target.close()


@pytest.mark.parametrize("swap", [put_back, lambda path, early: os.replace(early, path)], ids=["in place", "renamed"])
@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("act", (WRITES | READS).values(), ids=WRITES | READS)
def test_a_ledger_rolled_back_under_a_running_daemon_is_refused(site, tmp_path, act, anchored, swap):
    anchor = site.anchor
    site.anchored = anchored
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    charge(ledger, "a", 3)
    seen = anchor.read_bytes()
    swap(site.path, tmp_path / "early.db")
    for _ in range(2):  # and it stays refused
        with pytest.raises(BadValue, match="was rolled back, or is another one: this process has seen its entry 9"):
            act(ledger)
    ledger.close_file()
    assert anchor.read_bytes() == seen
    assert verify(site.path, None).head.number <= 9  # 9 if SQLite finds the log of the file that was there


def test_an_anchor_is_not_written_for_a_ledger_that_was_rolled_back(site, tmp_path):
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    charge(ledger, "a", 3)
    seen = site.anchor.read_bytes()
    put_back(site.path, tmp_path / "early.db")
    with pytest.raises(BadValue, match="this process has seen its entry 9"):
        ledger.write_anchor()
    ledger.close_file()
    assert site.anchor.read_bytes() == seen


def test_another_entry_in_the_place_of_the_last_one_is_refused(site, tmp_path):
    site.anchored = False
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    charge(ledger, "a", 3)
    put_back(site.path, tmp_path / "early.db")
    other = site.open()
    charge(other, "a", 3, body=b"another reply")
    other.close_file()
    with pytest.raises(BadValue, match="this process has seen its entry 9"):
        charge(ledger, "a", 4)
    ledger.close_file()


def test_what_another_process_has_written_is_remembered_too(site, tmp_path):
    """This process has only read the last entry."""
    site.anchored = False
    ledger, other = site.open(), site.open()
    ledger.backup(tmp_path / "early.db")
    charge(other, "a", 3)
    assert ledger.run("a").asked == 4
    other.close_file()
    put_back(site.path, tmp_path / "early.db")
    with pytest.raises(BadValue, match="this process has seen its entry 9"):
        charge(ledger, "a", 3, body=b"another reply")
    ledger.close_file()


@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_nothing_is_written_behind_an_anchor(site, tmp_path, act):
    """A process that has not seen the entry: the anchor has, and it is not overwritten."""
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    other = site.open()
    charge(other, "a", 3)
    other.close_file()
    seen = site.anchor.read_bytes()
    put_back(site.path, tmp_path / "early.db")
    with pytest.raises(BadValue, match="is behind its anchor, or is another one: the anchor has seen entry 9"):
        act(ledger)
    site.anchor.unlink()
    with pytest.raises(BadValue, match="does not exist, and the policy names it"):
        act(ledger)
    assert not site.anchor.exists()
    site.anchor.write_bytes(seen)
    ledger.close_file()
    assert verify(site.path, None).head.number == 8


def test_a_write_that_failed_is_not_remembered_as_seen(site, monkeypatch):
    ledger = site.open()
    monkeypatch.setattr(Ledger, "_put_state", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        charge(ledger, "a", 3)
    monkeypatch.undo()
    charge(ledger, "a", 3)
    ledger.close_file()


# ---------------------------------------------------------------------- loss, backup, restore


def test_after_a_loss_all_that_was_committed_is_spent(site):
    committed = site.open().totals().committed
    site.path.unlink()
    with pytest.raises(BadValue, match="knows of a ledger of this source; restore it; if it is lost for good"):
        site.new()
    Ledger.create_after_loss(site.path, **site.named)
    ledger = site.open()
    assert ledger.totals().spent == committed
    assert ledger.totals().reserved == 0
    assert ledger.runs() == ()
    ledger.close_file()


def test_after_a_loss_alone_stays_alone_and_the_order_stays(tmp_path):
    site = Site(tmp_path, Budget(epsilon=LONG.guarantee().epsilon(1e-5).upper * 1.001))
    ledger = site.new()
    assert reserve(ledger, "long", LONG)
    ledger.close_file()
    site.path.unlink()
    order = ledger.budget.order
    site.budget = Budget(epsilon=9.0)
    Ledger.create_after_loss(site.path, **site.named)
    ledger = site.open()
    assert ledger.budget.order == order
    assert ledger.totals().left == 0
    assert not reserve(ledger, "small", plan_of(0.001, rounds=1))
    ledger.close_file()


def test_a_backup_is_one_whole_file_and_is_never_overwritten(site, tmp_path):
    ledger = site.open()
    to = tmp_path / "backup.db"
    ledger.backup(to)
    assert to.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadValue, match="exists already"):
        ledger.backup(to)
    ledger.close_file()
    assert verify(to, site.anchor) == verify(site.path, site.anchor)
    assert not [path for path in tmp_path.iterdir() if ".new" in path.name]


def test_a_backup_that_has_everything_is_restored_as_it_is(site, tmp_path):
    ledger = site.open()
    ledger.backup(tmp_path / "backup.db")
    before = ledger.totals(), ledger.runs(), ledger.head
    ledger.close_file()
    for damage in (b"", b"garbage" * 1000, None):
        if damage is None:
            site.path.unlink()
        else:
            site.path.write_bytes(damage)
        found = restore(site.path, tmp_path / "backup.db", **site.named)
        assert not found.lost
        ledger = site.open()
        assert (ledger.totals(), ledger.runs(), ledger.head) == before
        assert ledger.stored("a", 1, 0).body == b"body 1"
        ledger.close_file()


def test_an_old_backup_needs_a_word_and_carries_over_what_was_committed(site, tmp_path):
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    reserve(ledger, "c", plan_of(0.1))
    charge(ledger, "c")
    charge(ledger, "a", 3)
    committed = ledger.totals().committed
    ledger.close_file()
    with pytest.raises(BadValue, match=r"may be behind: entry 11 was seen since.*--confirm-loss"):
        restore(site.path, tmp_path / "early.db", **site.named)
    assert verify(site.path, site.anchor).head.number == 11
    found = restore(site.path, tmp_path / "early.db", **site.named, confirm_loss=True)
    assert found.lost
    assert found.closed == ("a",)
    ledger = site.open()
    assert ledger.totals().spent == committed
    assert ledger.totals().reserved == 0
    assert ledger.run("a").refusal(3, 0) is not None
    assert ledger.run("c") is None
    assert reserve(ledger, "d", plan_of(0.1))
    assert ledger.totals().committed == pytest.approx(committed + 0.25)
    ledger.close_file()
    assert verify(site.path, site.anchor).bodies == 0


def test_a_backup_that_nothing_vouches_for_needs_a_word(site, tmp_path):
    site.anchored = False
    ledger = site.open()
    ledger.backup(tmp_path / "backup.db")
    committed = ledger.totals().committed
    ledger.close_file()
    site.path.unlink()
    with pytest.raises(BadValue, match="nothing else says what came after it"):
        restore(site.path, tmp_path / "backup.db", **site.named)
    restore(site.path, tmp_path / "backup.db", **site.named, confirm_loss=True)
    ledger = site.open()
    assert ledger.totals().spent == committed
    ledger.close_file()


def test_after_a_loss_no_run_is_alone(tmp_path):
    """Nothing is known to have been asked, but a later entry may be lost."""
    site = Site(tmp_path, Budget(epsilon=LONG.guarantee().epsilon(1e-5).upper * 1.001), anchored=False)
    ledger = site.new()
    ledger.backup(tmp_path / "backup.db")
    ledger.close_file()
    site.path.unlink()
    restore(site.path, tmp_path / "backup.db", **site.named, confirm_loss=True)
    ledger = site.open()
    assert ledger.totals().spent == 0
    assert not reserve(ledger, "long", LONG)
    ledger.close_file()


def test_a_backup_behind_the_present_ledger_needs_a_word_without_an_anchor_too(site, tmp_path):
    site.anchored = False
    ledger = site.open()
    ledger.backup(tmp_path / "early.db")
    charge(ledger, "a", 3)
    ledger.close_file()
    with pytest.raises(BadValue, match="may be behind: entry 9 was seen since"):
        restore(site.path, tmp_path / "early.db", **site.named)
    assert verify(site.path, None).head.number == 9


def test_a_ledger_in_use_is_not_replaced(site, tmp_path):
    ledger = site.open()
    ledger.backup(tmp_path / "backup.db")
    with pytest.raises(BadValue, match=r"is in use.*stop the daemon first"):
        restore(site.path, tmp_path / "backup.db", **site.named)
    charge(ledger, "a", 3)
    ledger.close_file()
    assert verify(site.path, site.anchor).head.number == 9


def test_a_damaged_backup_is_not_restored(site, tmp_path):
    shutil.copy(site.path, tmp_path / "backup.db")
    twin = Site(tmp_path)
    edited(twin, DEEP["a reply"])
    site.path.rename(tmp_path / "backup.db")
    with pytest.raises(BadValue, match="is damaged"):
        restore(site.path, tmp_path / "backup.db", **site.named)
    assert not site.path.exists()


# ---------------------------------------------------------------------- receipts


def test_a_receipt_has_what_was_charged_and_no_data(site):
    ledger = site.open()
    receipt = ledger.receipt("a")
    plan = ledger.run("a").plan
    assert receipt["slots"] == {"rounds": 3, "attempts": 0, "queries": 3}
    assert receipt["charged"]["amount"] == pytest.approx(3 * 0.05**2)
    assert receipt["guarantee"]["epsilon"]["upper"] == plan.guarantee().epsilon(1e-5).upper
    assert receipt["head"]["number"] == 8
    assert receipt["document"] == (b"d" * 32).hex()
    text = json.dumps(receipt)
    assert "accuracy" not in text
    assert b"body 1".hex() not in text
    ledger.close_file()


def test_a_signed_receipt_is_checked(site):
    ledger = site.open()
    receipt = signed(ledger.receipt("a"), b"i" * 32)
    ledger.close_file()
    assert check_receipt(json.loads(json.dumps(receipt))) == receipt["identity"]
    for name in receipt:
        if name != "signature":
            with pytest.raises(BadValue, match="is not as its owner signed it"):
                check_receipt({**receipt, name: "other"})
    with pytest.raises(BadValue, match="is not as its owner signed it"):
        check_receipt({**receipt, "signature": "00" * 64})
    with pytest.raises(BadValue, match="is not signed"):
        check_receipt({name: value for name, value in receipt.items() if name != "signature"})


@pytest.mark.parametrize("where", ["backup", "anchor", "present ledger"])
def test_a_restore_keeps_to_one_promise(site, tmp_path, where):
    """Whichever of the three was made for another promise, nothing is replaced."""
    ledger = site.open()
    ledger.backup(tmp_path / "backup.db")
    ledger.close_file()
    other = Site(tmp_path / "other", protected=Protected(neighbours="add-remove"))
    other.folder.mkdir()
    other.new().close_file()
    site.anchored = where == "anchor"
    if where == "backup":
        shutil.copy(other.path, tmp_path / "backup.db")
    if where == "anchor":
        shutil.copy(other.anchor, site.anchor)
        site.path.unlink()
    if where == "present ledger":
        shutil.copy(other.path, site.path)
    before = site.path.read_bytes() if site.path.exists() else None
    with pytest.raises(BadValue, match=r"source.neighbours = replace is not add-remove"):
        restore(site.path, tmp_path / "backup.db", **site.named, confirm_loss=True)
    assert (site.path.read_bytes() if site.path.exists() else None) == before


def test_verify_compares_the_promise_of_the_anchor(site):
    anchor = Anchor.read(site.anchor)
    replace(anchor, protected=Protected(holders=2)).write(site.anchor)
    with pytest.raises(BadValue, match="is the anchor of another ledger"):
        verify(site.path, site.anchor)
