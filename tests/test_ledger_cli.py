"""`prifedsync ledger` and `prifedsync owner status`, as an owner runs them. Nothing of it loads torch."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from unittest import mock

import pytest

from prifedsync.accounting import Budget
from prifedsync.cli import main

from .owner.ledgers import Site, charge, plan_of, reserve

POLICY = """
client = "north"
[source]
name = "clinic"
records = 100
[data]
source = "csv"
path = "records.csv"
task = "binary"
[budget]
mu = 1.0
[limits]
models = ["softmax"]
[files]
anchor = "anchor.json"
[masks]
identity = "identity.key"
"""
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from prifedsync.cli import main; main()"
RUN = "3f2a" * 8


@pytest.fixture
def site(tmp_path):
    for name, text in {"policy.toml": POLICY, "identity.key": "1f" * 32 + "\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    return Site(tmp_path)


@pytest.fixture
def filled(site):
    ledger = site.new()
    reserve(ledger, RUN, plan_of(0.1, rounds=25, attempts=3), by="flower")
    reserve(ledger, "77b1" * 8, plan_of(0.1, rounds=25), by="other")
    for round in range(5):
        charge(ledger, RUN, round)
    charge(ledger, RUN, 4, 1)
    ledger.note_late(RUN)
    ledger.close_file()
    return site


def ran(site, *words, status=0):
    """What a command prints."""
    group, name, *rest = words
    out, err = io.StringIO(), io.StringIO()
    argv = ["prifedsync", group, name, "policy.toml", *rest]
    with (
        contextlib.chdir(site.folder),
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, COLUMNS="160"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stopped,
    ):
        main()
    assert (stopped.value.code or 0) == status, err.getvalue()
    return out.getvalue() if status == 0 else err.getvalue() + out.getvalue()


def as_json(site, *words, **own):
    return json.loads(ran(site, *words, "--json", **own))


@pytest.mark.parametrize(
    "words", ["owner status", "ledger show", "ledger verify", "ledger export --run 3f2a", "ledger end 3f2a"]
)
def test_no_command_needs_torch(filled, words):
    group, name, *rest = words.split()
    command = [sys.executable, "-c", WITHOUT_TORCH, group, name, "policy.toml", *rest]
    subprocess.run(command, cwd=filled.folder, check=True, capture_output=True)


def test_a_ledger_is_made_once_by_its_owner(site):
    assert "does not exist; run `prifedsync ledger new POLICY`" in ran(site, "ledger", "show", status=2)
    assert "is the ledger of clinic; nothing was spent" in ran(site, "ledger", "new")
    assert "exists already" in ran(site, "ledger", "new", status=2)
    assert "No run was enrolled yet." in ran(site, "owner", "status")


def test_the_status_page_says_what_was_spent_reserved_and_left(filled):
    page = as_json(filled, "owner", "status")
    assert page["spent"] == pytest.approx(0.06)
    assert page["reserved"] == pytest.approx(0.22 + 0.25)
    assert page["left"] == pytest.approx(0.47)
    assert page["mu_spent"] == pytest.approx(0.06**0.5)
    assert page["mu_spent"] >= 0.06**0.5
    first, second = page["runs"]
    assert (first["rounds_asked"], first["rounds"], first["attempts_used"], first["attempts"]) == (5, 25, 1, 3)
    assert (first["by"], first["late"], first["state"]) == ("flower", 1, "open")
    assert second["spent"] == 0
    assert page["anchor"] == {"agrees": True, "why": ""}
    text = ran(filled, "owner", "status")
    assert "budget μ = 1, over all runs" in text
    assert "spent 6.0 %, reserved 47.0 %, left 47.0 %" in text
    assert "μ ≤ 0.2450 was spent" in text  # √0.06 = 0.24495, rounded up
    assert re.search(r"3f2a3f2a3f2a +flower +\S+ \S+ +open +5 of 25 +1 of 3 +1 +6.0 % +22.0 %", text)
    assert "1 of the replies left late" in text
    assert "Chain and anchor agree." in text


def test_the_bar_never_shows_too_much_left(filled):
    bar = next(line for line in ran(filled, "owner", "status").splitlines() if "░" in line)
    assert (bar.count("█"), bar.count("▒"), bar.count("░")) == (3, 24, 23)  # of 50: 3, 23.5 up, and what is left


def test_the_status_page_says_when_anchor_and_chain_disagree(filled):
    text = filled.anchor.read_bytes()
    ledger = filled.open()
    charge(ledger, RUN, 5)
    after = filled.anchor.read_bytes()
    ledger.close_file()
    filled.anchor.write_bytes(text)
    assert as_json(filled, "owner", "status")["anchor"]["agrees"]  # the ledger may be ahead
    other = Site(filled.folder / "other")
    other.folder.mkdir()
    other.new().close_file()
    other.path.replace(filled.path)
    filled.anchor.write_bytes(after)
    assert "chain and anchor do not agree" in ran(filled, "owner", "status", status=1)
    assert "is behind its anchor, or is another one" in ran(filled, "ledger", "show", status=2)
    assert "is behind its anchor, or is another one" in ran(filled, "ledger", "verify", status=2)


def test_show_and_verify(filled):
    found = as_json(filled, "ledger", "show", "--last", "3")
    assert [entry["kind"] for entry in found["entries"]] == ["charged", "charged", "late"]
    text = ran(filled, "ledger", "show")
    assert "round 4, attempt 1, sent" in text
    assert "25 rounds and 3 attempts, by flower" in text
    verified = as_json(filled, "ledger", "verify")
    assert (verified["entries"], verified["replies"], verified["anchored"]) == (10, 6, 9)


def test_a_receipt_is_signed_and_checked(filled):
    ran(filled, "ledger", "export", "--run", "3f2a", "--out", "receipt.json")
    receipt = json.loads((filled.folder / "receipt.json").read_text())
    assert receipt["run"] == RUN
    assert receipt["slots"] == {"rounds": 5, "attempts": 1, "queries": 6}
    assert receipt["charged"]["amount"] == pytest.approx(0.06)
    assert "accuracy" not in json.dumps(receipt)
    assert receipt["identity"] in ran(filled, "ledger", "verify", "--receipt", "receipt.json")
    receipt["slots"]["rounds"] = 4
    (filled.folder / "receipt.json").write_text(json.dumps(receipt))
    assert "is not as its owner signed it" in ran(filled, "ledger", "verify", "--receipt", "receipt.json", status=2)


def test_the_whole_chain_is_exported(filled):
    found = json.loads(ran(filled, "ledger", "export"))
    assert len(found["entries"]) == 10
    assert found["entries"][0]["body"]["source"] == "clinic"


def test_a_run_is_ended_and_what_it_reserved_is_free(filled):
    for few in ("", "3f2"):
        assert "at least 4 digits" in ran(filled, "ledger", "end", few, status=2)
    assert "is not in the ledger" in ran(filled, "ledger", "end", "zzzz", status=2)
    said = ran(filled, "ledger", "end", "3f2a")
    assert "5 of 25 rounds and 1 of 3 attempts were asked; what it reserved for the others is free again" in said
    assert as_json(filled, "owner", "status")["left"] == pytest.approx(1 - 0.06 - 0.25)
    assert "is closed already" in ran(filled, "ledger", "end", "3f2a", status=2)


def test_a_run_that_was_alone_releases_nothing(site):
    from .owner.test_ledger import LONG

    budget = LONG.guarantee().epsilon(1e-5).upper * 1.001
    policy = site.folder / "policy.toml"
    policy.write_text(POLICY.replace("mu = 1.0", f"epsilon = {budget!r}"))
    site.budget = Budget(epsilon=budget)
    ledger = site.new()
    reserve(ledger, "long", LONG)
    charge(ledger, "long")
    ledger.close_file()
    text = ran(site, "owner", "status")
    assert "One run has the whole budget" in text
    assert "left 0.0 %" in text
    assert "nothing of it is released" in ran(site, "ledger", "end", "long")
    assert as_json(site, "owner", "status")["left"] == 0
    assert as_json(site, "owner", "status")["epsilon_spent"] == budget


def test_backup_loss_and_restore(filled):
    ran(filled, "ledger", "backup", "backup.db")
    ledger = filled.open()
    charge(ledger, RUN, 5)
    ledger.close_file()
    assert "may be behind" in ran(filled, "ledger", "restore", "backup.db", status=2)
    committed = as_json(filled, "owner", "status")
    said = ran(filled, "ledger", "restore", "backup.db", "--confirm-loss")
    assert "entries were lost" in said
    assert RUN in said
    page = as_json(filled, "owner", "status")
    assert page["spent"] == pytest.approx(committed["spent"] + committed["reserved"])
    assert {run["state"] for run in page["runs"]} == {"carried over"}
    filled.path.unlink()
    assert "restore it" in ran(filled, "ledger", "new", status=2)
    assert "counts as spent" in ran(filled, "ledger", "new", "--after-loss")
    assert as_json(filled, "owner", "status")["spent"] == page["spent"]


def test_an_anchor_is_written_anew(filled):
    filled.anchor.unlink()
    assert "does not exist, and the policy names it" in ran(filled, "ledger", "show", status=2)
    assert "is the anchor of entry 9" in ran(filled, "ledger", "anchor")
    ran(filled, "ledger", "verify")


def test_an_anchor_that_has_seen_more_is_not_overwritten(filled):
    """Otherwise one command would hide that the ledger was rolled back."""
    ran(filled, "ledger", "backup", "early.db")
    ledger = filled.open()
    charge(ledger, RUN, 5)
    committed = ledger.totals().committed
    ledger.close_file()
    (filled.folder / "early.db").replace(filled.path)
    before = filled.anchor.read_bytes()
    assert "is behind its anchor" in ran(filled, "ledger", "anchor", status=2)
    assert filled.anchor.read_bytes() == before
    ran(filled, "ledger", "restore", "ledger.db", "--confirm-loss")  # the copy itself, if there is no better one
    assert as_json(filled, "owner", "status")["spent"] == pytest.approx(committed)
