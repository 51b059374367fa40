"""The ledger: what is reserved, charged and released, by whom, and what happens when a write fails."""

import math
import os
import subprocess
import sys
import threading

import pytest

from prifedsync.accounting import Budget, NoisySteps, PrivacyPlan
from prifedsync.asking.questions import Head
from prifedsync.asking.refusals import Refusal
from prifedsync.config.layering import merged
from prifedsync.owner.ledger import Ledger, LedgerFailed, Protected, schema, verify
from prifedsync.owner.ledger.anchor import Anchor
from prifedsync.owner.ledger.pages import protected_of
from prifedsync.owner.policy import EXAMPLE, from_mapping
from prifedsync.values import BadValue

from .ledgers import TEXT, Site, charge, plan_of, reserve


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def ledger(site):
    found = site.new()
    yield found
    found.close_file()


# ---------------------------------------------------------------------- budget


def test_four_runs_of_one_half_fit_and_a_fifth_does_not(ledger):
    for run in "abcd":
        assert reserve(ledger, run, plan_of(0.1, rounds=25))
    assert ledger.totals().left == pytest.approx(0, abs=1e-9)
    before = ledger.head
    assert not reserve(ledger, "e", plan_of(0.01, rounds=1))
    assert ledger.head == before
    assert ledger.run("e") is None


def test_a_reservation_is_for_all_rounds_and_attempts(ledger):
    assert not reserve(ledger, "a", plan_of(0.2, rounds=26))
    assert not reserve(ledger, "a", plan_of(0.2, rounds=25, attempts=1))
    assert reserve(ledger, "a", plan_of(0.2, rounds=20, attempts=5))
    assert ledger.totals().left == pytest.approx(0, abs=1e-9)


def test_charging_moves_reserved_to_spent_slot_by_slot(ledger):
    reserve(ledger, plan=plan_of(0.05, rounds=3, attempts=1))
    for round in range(3):
        before = ledger.totals()
        charge(ledger, round=round, status="sent" if round else "absent")
        now = ledger.totals()
        assert now.spent == pytest.approx((round + 1) * 0.05**2)
        assert now.committed == pytest.approx(before.committed)
    charge(ledger, round=2, attempt=1)
    assert ledger.totals().spent == pytest.approx(4 * 0.05**2)
    assert ledger.totals().reserved == 0
    run = ledger.run("a")
    assert (run.asked, run.spare, run.queries) == (3, 1, 3)
    assert ledger.totals().spent >= 4 * 0.05**2  # rounded up, never down


def test_closing_releases_what_was_not_asked_and_no_more(ledger):
    reserve(ledger, plan=plan_of(0.2, rounds=25))
    charge(ledger)
    charge(ledger, round=7, status="absent")
    assert not reserve(ledger, "b", plan_of(0.2, rounds=23))
    ledger.close("a", "it is over")
    assert ledger.totals().spent == pytest.approx(2 * 0.04)
    assert ledger.totals().reserved == 0
    assert not reserve(ledger, "b", plan_of(0.2, rounds=24))
    assert reserve(ledger, "b", plan_of(0.2, rounds=23))
    ledger.close("a", "again")
    assert ledger.run("a").why == "it is over"


def test_many_slots_do_not_drift(site):
    ledger = site.new()
    reserve(ledger, plan=plan_of(0.01, rounds=1000))
    for round in range(300):
        charge(ledger, round=round)
    exact = 300 * 0.01**2
    assert exact <= ledger.totals().spent <= exact * (1 + 1e-12)
    ledger.close_file()


def test_the_unit_of_a_subsampled_run_is_that_of_the_budget(tmp_path):
    small = PrivacyPlan(
        mechanism=NoisySteps(noise_multiplier=4.0, records=1000, batch=10, local_steps=1), rounds=30, participation=0.5
    )
    site = Site(tmp_path, Budget(epsilon=1.0))
    ledger = site.new()
    assert reserve(ledger, plan=small)
    assert not ledger.run("a").alone
    cost = ledger.budget.cost(small)
    charge(ledger, status="absent")
    assert ledger.totals().spent == pytest.approx(cost.round)  # a toss is charged, whatever it says
    ledger.close_file()


# ---------------------------------------------------------------------- alone

LONG = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=2.0, records=600, batch=16, local_steps=1), rounds=300)


@pytest.fixture
def tight(tmp_path):
    """A budget that the exact guarantee of LONG fits, and the filter's does not."""
    site = Site(tmp_path, Budget(epsilon=LONG.guarantee().epsilon(1e-5).upper * 1.001))
    ledger = site.new()
    assert not ledger.budget.covers(ledger.budget.cost(LONG).of(300, 0))
    yield ledger
    ledger.close_file()


SMALL = plan_of(0.01, rounds=1)


def test_alone_has_the_whole_budget_for_ever_once_it_was_asked(tight):
    assert reserve(tight, "long", LONG)
    assert tight.run("long").alone
    totals = tight.totals()
    assert (totals.spent, totals.reserved, totals.left, totals.alone) == (0, totals.limit, 0, True)
    assert not reserve(tight, "small", SMALL)
    charge(tight, "long", status="absent")
    assert tight.totals().spent == tight.totals().limit
    tight.close("long", "over")
    assert tight.totals().left == 0
    assert not reserve(tight, "small", SMALL)
    assert not reserve(tight, "again", LONG)


def test_alone_is_free_again_if_it_was_never_asked(tight):
    assert reserve(tight, "long", LONG)
    tight.close("long", "nobody came")
    assert tight.totals().left == tight.totals().limit
    assert reserve(tight, "small", SMALL)


def test_alone_needs_that_nothing_was_ever_asked_and_nothing_is_open(tight):
    assert reserve(tight, "small", SMALL)
    assert not reserve(tight, "long", LONG)  # another run is open
    tight.close("small", "over")
    assert reserve(tight, "long", LONG)  # and it was never asked
    tight.close("long", "over")
    assert reserve(tight, "other", SMALL)
    charge(tight, "other", status="absent")
    tight.close("other", "over")
    assert not reserve(tight, "last", LONG)


def test_alone_does_not_begin_after_earlier_spending(tmp_path):
    budget = Budget(epsilon=LONG.guarantee().epsilon(1e-5).upper * 1.001)
    ledger = Site(tmp_path, budget).new(spent=1e-12)
    assert not reserve(ledger, "long", LONG)
    ledger.close_file()


# ---------------------------------------------------------------------- slots


def test_a_slot_returns_the_stored_bytes(ledger):
    reserve(ledger)
    head = charge(ledger, body=b"\0\1reply", state=b"s1")
    found = ledger.stored("a", 0, 0)
    assert (found.question, found.body, found.head, found.status, found.queries) == (
        b"q" * 32,
        b"\0\1reply",
        head,
        "sent",
        1,
    )
    assert found.scores == {"accuracy": 0.5}
    assert ledger.stored("a", 1, 0) is None
    assert ledger.stored("b", 0, 0) is None
    assert ledger.state("a") == b"s1"
    ledger.keep("a", b"s2")
    assert ledger.state("a") == b"s2"
    assert ledger.head == head


@pytest.mark.parametrize(
    ("round", "attempt", "refusal"),
    [
        (3, 0, Refusal.ORDER),  # a second charge of the same slot
        (2, 0, Refusal.ORDER),
        (3, 2, Refusal.ORDER),  # attempt 1 was never made
        (2, 1, Refusal.ORDER),
        (4, 1, Refusal.ORDER),
        (3, 1, None),
        (4, 0, None),
        (9, 0, None),
    ],
)
def test_slots_are_charged_in_order(ledger, round, attempt, refusal):
    reserve(ledger, plan=plan_of(attempts=1))
    charge(ledger, round=3)
    assert ledger.run("a").refusal(round, attempt) is refusal
    if refusal is None:
        charge(ledger, round=round, attempt=attempt)
        return
    before = ledger.head, ledger.run("a")
    with pytest.raises(BadValue, match=refusal.value):
        charge(ledger, round=round, attempt=attempt, body=b"other")
    assert (ledger.head, ledger.run("a")) == before


def test_no_slot_beyond_the_plan(ledger):
    reserve(ledger, plan=plan_of(rounds=2, attempts=1))
    charge(ledger)
    charge(ledger, attempt=1)
    assert ledger.run("a").refusal(0, 2) is Refusal.BEYOND
    assert ledger.run("a").refusal(2, 0) is Refusal.BEYOND
    charge(ledger, round=1)
    assert ledger.run("a").refusal(2, 0) is Refusal.BEYOND
    with pytest.raises(BadValue, match="beyond the plan"):
        charge(ledger, round=2)
    ledger.close("a", "over")
    assert ledger.run("a").refusal(2, 0) is Refusal.CLOSED


def test_numbers_beyond_sqlite_are_refused(ledger):
    reserve(ledger)
    assert ledger.stored("a", 10**30, 0) is None
    assert ledger.stored("a", 0, -1) is None
    with pytest.raises(BadValue, match="round"):
        charge(ledger, round=10**30)


def test_an_absent_round_is_not_repeated(ledger):
    reserve(ledger, plan=plan_of(attempts=3))
    charge(ledger, status="absent")
    assert ledger.run("a").refusal(0, 1) is Refusal.ORDER


def test_a_run_is_reserved_once(ledger):
    assert reserve(ledger)
    before = ledger.head
    assert reserve(ledger)
    assert ledger.head == before
    assert ledger.document("a") == TEXT
    with pytest.raises(BadValue, match="another document"):
        reserve(ledger, document=b"e" * 32)
    ledger.close("a", "over")
    with pytest.raises(BadValue, match="is closed"):
        reserve(ledger)


def test_a_closed_run_keeps_digests_and_drops_bytes(site, ledger):
    reserve(ledger)
    charge(ledger, body=b"SECRETREPLY" * 1000, state=b"SECRETSTATE" * 1000)
    ledger.close("a", "over")
    found = ledger.stored("a", 0, 0)
    assert found.body is None
    assert found.scores == {}
    assert found.question == b"q" * 32
    assert ledger.state("a") is None
    assert ledger.document("a") == TEXT
    left = b"".join(path.read_bytes() for path in site.folder.iterdir())
    assert b"SECRETREPLY" not in left
    assert b"SECRETSTATE" not in left
    with pytest.raises(BadValue, match="is closed"):
        ledger.keep("a", b"new")
    assert verify(site.path, site.anchor).bodies == 0


def test_old_runs_are_closed(site):
    now = [0.0]
    site.new().close_file()
    ledger = site.open(clock=lambda: now[0])
    reserve(ledger, "old")
    now[0] = 86400.0
    reserve(ledger, "new")
    now[0] = 2 * 86400.0
    assert ledger.close_old(2.0) == ()
    now[0] += 1.0
    assert ledger.close_old(2.0) == ("old",)
    assert [run.open for run in ledger.runs()] == [False, True]
    ledger.close_file()


def test_late_replies_are_counted(ledger):
    reserve(ledger)
    ledger.note_late("a")
    ledger.note_late("a")
    assert ledger.run("a").late == 2


def test_only_heads_of_this_ledger_are_known(ledger):
    first = ledger.head
    reserve(ledger)
    assert ledger.knows(first)
    assert ledger.knows(ledger.head)
    assert not ledger.knows(Head(first.number, ledger.head.hash))
    assert not ledger.knows(Head(2, bytes(32)))
    assert not ledger.knows(Head(-1, bytes(32)))
    assert not ledger.knows(Head(10**30, bytes(32)))


def test_a_head_tells_nothing_about_its_entry(tmp_path):
    """The same charges at the same time give other heads: an asker cannot find a field of an entry by trying."""
    heads = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        site = Site(tmp_path / name)
        site.new().close_file()
        ledger = site.open(clock=lambda: 0.0)
        reserve(ledger)
        heads.append(charge(ledger))
        ledger.note_late("a")
        bodies = {entry.kind: entry.body for entry in ledger.chain.entries()}
        ledger.close_file()
        assert len(bodies["charged"]["salt"]) == 32
        assert "time" not in bodies["charged"]
        assert "time" not in bodies["late"]
    assert heads[0].number == heads[1].number
    assert heads[0].hash != heads[1].hash
    salts = {entry.body["salt"] for entry in site.open().chain.entries()}
    assert len(salts) == 4


# ---------------------------------------------------------------------- opening


def test_a_ledger_is_not_made_by_opening_it(site):
    with pytest.raises(BadValue, match=r"does not exist.*ledger new"):
        site.open()
    assert not list(site.folder.iterdir())


def test_a_ledger_is_made_once(site, ledger):
    before = site.path.read_bytes()
    with pytest.raises(BadValue, match="exists already"):
        site.new()
    site.anchored = False
    with pytest.raises(BadValue, match="exists already"):
        site.new()
    assert site.path.read_bytes() == before


def test_files_are_the_owners_alone(site, ledger):
    reserve(ledger)
    for path in site.folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


@pytest.mark.parametrize(("setting", "value"), [("synchronous", 2), ("secure_delete", 1), ("journal_mode", "wal")])
def test_a_committed_transaction_is_on_the_disk_and_what_is_dropped_is_not(ledger, setting, value):
    assert ledger.chain.sql.execute(f"PRAGMA {setting}").fetchone() == (value,)


def test_another_source_or_unit_is_refused(site, ledger):
    site.source = "other"
    with pytest.raises(BadValue, match="the ledger of the source clinic, and the policy names other"):
        site.open()
    site.source = "clinic"
    site.budget = Budget(epsilon=1.0)
    with pytest.raises(BadValue, match=r"budget.epsilon = 1.0 is set, and the ledger adds up mu"):
        site.open()


def test_a_changed_budget_keeps_the_order_and_what_was_spent(tmp_path):
    site = Site(tmp_path, Budget(epsilon=1.0))
    ledger = site.new()
    order = ledger.budget.order
    reserve(ledger, plan=plan_of(0.01, rounds=10))
    spent = ledger.totals().reserved
    ledger.close_file()
    site.budget = Budget(epsilon=4.0)
    assert site.budget.order != order
    wider = site.open()
    assert wider.budget.order == order
    assert wider.totals().reserved == spent
    assert wider.totals().limit == Budget(epsilon=4.0, order=order).limit
    wider.close_file()
    site.budget = Budget(epsilon=0.2)
    assert site.open().totals().left == 0


def test_a_newer_ledger_is_refused_by_name(site, ledger, monkeypatch):
    ledger.close_file()
    monkeypatch.setattr(schema, "VERSION", 0)
    with pytest.raises(BadValue, match="has schema version 1, and this program reads versions up to 0; install"):
        site.open()


def test_an_older_ledger_is_upgraded_in_one_transaction(site, ledger, monkeypatch):
    """A made-up next version has one more table. If the upgrade fails, the ledger is the old one."""
    reserve(ledger)
    ledger.close_file()
    before = verify(site.path, site.anchor).head
    monkeypatch.setattr(schema, "VERSION", 2)
    monkeypatch.setattr(schema, "DERIVED", schema.DERIVED + "CREATE TABLE notes (text TEXT);\n")

    def half_done(connection):
        connection.execute("CREATE TABLE notes (text TEXT)")
        raise OSError("the power fails")

    with pytest.raises(BadValue, match="has schema version 1, and this program reads version 2"):
        verify(site.path, site.anchor)
    monkeypatch.setattr(schema, "UPGRADES", {1: half_done})
    with pytest.raises(OSError, match="the power fails"):
        site.open()
    monkeypatch.setattr(schema, "UPGRADES", {1: lambda connection: connection.execute("CREATE TABLE notes (text TEXT)")})
    upgraded = site.open()
    assert upgraded.head.number == before.number + 1
    assert upgraded.knows(before)
    assert upgraded.run("a").open
    charge(upgraded)
    upgraded.close_file()
    assert verify(site.path, site.anchor).replies == 1


# ---------------------------------------------------------------------- failures, threads, processes


def test_a_failed_anchor_lets_nothing_out_unanchored(site, ledger, monkeypatch):
    """The charge is in the ledger, the anchor is not written: the reply may leave only once it is."""
    reserve(ledger)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(Anchor, "write", full)
    with pytest.raises(OSError, match="no space left"):
        charge(ledger)
    with pytest.raises(OSError, match="no space left"):
        ledger.stored("a", 0, 0)
    monkeypatch.undo()
    assert Anchor.read(site.anchor).number == 1
    found = ledger.stored("a", 0, 0)
    assert found.body == b"reply"
    assert Anchor.read(site.anchor).number == found.head.number == 2


def test_a_full_disk_leaves_the_ledger_as_it_was(site, ledger):
    reserve(ledger)
    before = ledger.head, ledger.run("a"), ledger.totals()
    sql = ledger.chain.sql
    (pages,) = sql.execute("PRAGMA page_count").fetchone()
    sql.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(LedgerFailed, match="full"):
        charge(ledger, body=os.urandom(1_000_000))
    assert (ledger.head, ledger.run("a"), ledger.totals()) == before
    assert ledger.stored("a", 0, 0) is None
    sql.execute("PRAGMA max_page_count = 100000")
    charge(ledger)
    ledger.close_file()
    assert verify(site.path, site.anchor).replies == 1


def test_anything_that_fails_inside_is_undone(site, ledger, monkeypatch):
    reserve(ledger)
    before = ledger.head
    monkeypatch.setattr(Ledger, "_put_state", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        charge(ledger)
    monkeypatch.undo()
    assert ledger.head == before
    assert ledger.stored("a", 0, 0) is None
    assert ledger.run("a").asked == 0


def test_two_who_race_for_the_last_of_the_budget(site, ledger):
    """Eight threads with two connections: exactly as many runs as fit are reserved."""
    other = site.open()
    accepted = []

    def enrol(number):
        accepted.append(reserve((ledger, other)[number % 2], f"run-{number}", plan_of(0.1)))  # 1/4 each

    threads = [threading.Thread(target=enrol, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close_file()
    assert sorted(accepted) == [False] * 4 + [True] * 4
    assert verify(site.path, site.anchor).anchored == ledger.head.number == 4


def test_another_process_sees_and_goes_on(site, ledger):
    """Two open ledgers never write the same entry twice, and neither moves the anchor back."""
    reserve(ledger)
    other = site.open()
    for round in range(6):
        charge((ledger, other)[round % 2], round=round)
        assert Anchor.read(site.anchor).number == ledger.head.number == other.head.number
    other.close_file()
    assert ledger.run("a").asked == 6


def test_the_ledger_needs_no_torch():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from prifedsync.owner.ledger import Ledger, verify, restore\n"
        "from prifedsync.owner import policy\n"
        "from prifedsync.accounting import Budget\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# ---------------------------------------------------------------------- work


def work_of(ledger, do):
    """Instructions of SQLite's machine, in hundreds."""
    steps = [0]

    def count():
        steps[0] += 1

    ledger.chain.sql.set_progress_handler(count, 100)
    do()
    ledger.chain.sql.set_progress_handler(None, 0)
    return steps[0]


def test_the_work_does_not_grow_with_the_number_of_entries(tmp_path):
    ledger = Site(tmp_path, anchored=False).new()
    reserve(ledger, "busy", plan_of(0.001, rounds=5000))
    charge(ledger, "busy", round=0)
    early = work_of(ledger, lambda: (reserve(ledger, "b", SMALL), charge(ledger, "busy", round=1)))
    for round in range(2, 700):
        charge(ledger, "busy", round=round)
    late = work_of(ledger, lambda: (reserve(ledger, "c", SMALL), charge(ledger, "busy", round=700)))
    assert ledger.head.number > 700
    assert early > 0
    assert late <= early + 3
    ledger.close_file()


def test_a_run_without_a_bound_may_be_alone_and_spoils_no_sum(tmp_path):
    """At the order of this budget the filter has no number for it; its exact guarantee is small."""
    rare = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=0.5, records=10**6, batch=1, local_steps=1), rounds=2)
    ledger = Site(tmp_path, Budget(epsilon=1.0)).new()
    assert ledger.budget.cost(rare).round == math.inf
    assert reserve(ledger, "rare", rare)
    assert ledger.run("rare").alone
    assert math.isfinite(ledger.totals().committed)
    assert ledger.receipt("rare")["charged"] == {
        "unit": "epsilon",
        "order": ledger.budget.order,
        "amount": 0.0,
        "alone": True,
    }
    charge(ledger, "rare")
    assert ledger.totals().left == 0
    assert ledger.receipt("rare")["charged"]["amount"] is None
    ledger.close_file()
    Site(tmp_path, Budget(epsilon=1.0)).open().close_file()


# ---------------------------------------------------------------------- what is promised

PERSONS = Protected("person", "add-remove", 2, 8)
OTHERS = {
    "source.unit": Protected("record", "add-remove", 2, 8),
    "source.neighbours": Protected("person", "replace", 2, 8),
    "source.holders": Protected("person", "add-remove", 3, 8),
    "data.rows_per_person": Protected("person", "add-remove", 2, 9),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_spent_under_one_promise_is_not_counted_under_another(tmp_path, name):
    site = Site(tmp_path, protected=PERSONS)
    site.new().close_file()
    site.open().close_file()
    site.protected = OTHERS[name]
    with pytest.raises(BadValue, match=rf"{name} = \w+ is not \w.*, under which the ledger was made.*set it back"):
        site.open()
    for path in (site.path, site.anchor):
        assert path.stat().st_mode & 0o777 == 0o600
    site.path.unlink()
    with pytest.raises(BadValue, match=f"{name} = "):
        Ledger.create_after_loss(site.path, **site.named)
    assert not site.path.exists()


def test_a_policy_says_what_its_ledger_promises():
    said = merged(EXAMPLE, {"source": {"neighbours": "add-remove", "holders": 3}})
    assert protected_of(from_mapping(said)) == Protected("record", "add-remove", 3, None)
    assert protected_of(from_mapping(EXAMPLE)) == Protected()
    persons = {
        "source": {"unit": "person", "holders": 2},
        "data": {"person": "p", "person_clients": 2, "rows_per_person": 7},
    }
    assert protected_of(from_mapping(merged(EXAMPLE, persons))) == Protected("person", "replace", 2, 7)


# ---------------------------------------------------------------------- a lowered budget


def test_a_lowered_budget_binds_open_runs(site, ledger):
    """Two slots of 0.01 are charged. A budget of 0.035 covers a third, and no fourth, of whichever run."""
    reserve(ledger, "a", plan_of(0.1, rounds=10, attempts=2))
    reserve(ledger, "b", plan_of(0.1, rounds=10))
    charge(ledger, "a")
    charge(ledger, "b")
    ledger.close_file()
    site.budget = Budget(mu=math.sqrt(0.035))
    ledger = site.open()
    assert ledger.covers_next("a", 1)
    charge(ledger, "a", 0, 1)
    before = ledger.head
    for run, round, attempt in (("a", 0, 2), ("a", 1, 0), ("b", 1, 0)):
        assert not ledger.covers_next(run, attempt)
        with pytest.raises(BadValue, match=Refusal.BUDGET.value):
            charge(ledger, run, round, attempt)
    assert ledger.head == before
    assert ledger.stored("a", 0, 1).body == b"reply"  # what was charged may be asked again
    ledger.close_file()
    site.budget = Budget(mu=0.2)
    ledger = site.open()
    assert ledger.covers_next("b", 0)
    charge(ledger, "b", 1)
    assert not ledger.covers_next("b", 0)
    ledger.close_file()


def test_a_slot_costs_what_its_kind_costs(tmp_path):
    """With a coin, a further attempt costs more than a round: a budget between the two covers only the round."""
    plan = PrivacyPlan(
        mechanism=NoisySteps(noise_multiplier=60.0, records=100, batch="full", local_steps=1),
        rounds=10,
        attempts=5,
        participation=0.5,
    )
    site = Site(tmp_path, Budget(epsilon=1.0))
    ledger = site.new()
    reserve(ledger, plan=plan)
    charge(ledger)
    cost = ledger.run("a").cost
    assert cost.spare > 1.5 * cost.round
    whole = ledger.budget.limit
    ledger.close_file()
    site.budget = Budget(epsilon=1.0 - whole + 1.5 * cost.round + 0.5 * cost.spare)
    ledger = site.open()
    assert cost.round * 2 < ledger.totals().limit < cost.round + cost.spare
    assert ledger.covers_next("a", 0)
    assert not ledger.covers_next("a", 1)
    ledger.close_file()


def test_a_lowered_budget_binds_a_run_that_is_alone(tmp_path):
    exact = LONG.guarantee().epsilon(1e-5).upper
    site = Site(tmp_path, Budget(epsilon=exact * 1.001))
    ledger = site.new()
    reserve(ledger, "long", LONG)
    assert ledger.covers_next("long", 0)
    charge(ledger, "long")
    ledger.close_file()
    site.budget = Budget(epsilon=exact * 0.999)
    ledger = site.open()
    assert not ledger.covers_next("long", 0)
    with pytest.raises(BadValue, match=Refusal.BUDGET.value):
        charge(ledger, "long", 1)
    ledger.close_file()


# ---------------------------------------------------------------------- noisy queries


def charged(ledger, status, queries, run="a"):
    own = {"question": b"q", "status": status, "body": b"", "scores": {}, "state": b""}
    ledger.charge(run, 0, 0, **own, queries=queries)


@pytest.mark.parametrize(
    ("reserved", "status", "right"), [(None, "sent", 6), (3, "sent", 3), (None, "absent", 0), (3, "absent", 0)]
)
def test_a_reply_has_the_noisy_queries_that_were_reserved(ledger, reserved, status, right):
    steps = NoisySteps(noise_multiplier=1000.0, records=100, batch="full", local_steps=6)
    plan = PrivacyPlan(mechanism=steps, rounds=2)
    ledger.reserve("a", document=b"d", text=TEXT, plan=plan, by="asker", queries=reserved)
    for wrong in {right - 1, right + 1, 0, 3, 6} - {right}:
        with pytest.raises(BadValue, match=f"queries = {wrong} must be {right} in a reply that is {status}"):
            charged(ledger, status, wrong)
    assert ledger.run("a").asked == 0
    charged(ledger, status, right)
    assert ledger.run("a").spent >= 6 * (2 / 1000) ** 2  # those of the whole round, also if a model that stays takes some


@pytest.mark.parametrize("queries", [0, 2])
def test_no_more_noisy_queries_are_reserved_than_the_plan_has(ledger, queries):
    with pytest.raises(BadValue, match="queries"):
        ledger.reserve("a", document=b"d", text=TEXT, plan=plan_of(), by="asker", queries=queries)
    assert ledger.run("a") is None
