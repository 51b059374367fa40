"""Rows of clients with what their owners' ledgers say, and of runs between machines."""

import json

import pytest

from prifedsync.accounting import Budget
from prifedsync.owner.ledger.pages import totals_of
from prifedsync.record import RunRecord, plan_from_json
from prifedsync.report.contents import report_of
from prifedsync.values import BadValue

from ..owner.federations import Run, config_of
from ..owner.ledgers import Site, charge, reserve
from ..test_deployment import finished, owners_of
from .runs import SAID

RUN = "3f2a" * 8
OTHER = "77b1" * 8
BUDGET = Budget(mu=2.0)
POLICY = 'client = "a"\n[source]\nname = "clinic"\n'


def exported(plan, tmp_path, budget=BUDGET, rounds=4, source="clinic"):
    """A ledger with another run and this one, as its owner exports it: the receipt of this run, and all of it."""
    stem = source.replace("/", "-")
    with Site(tmp_path, budget, source).new() as ledger:
        reserve(ledger, OTHER, plan.changed(rounds=2), by="other")
        for round in range(2):
            charge(ledger, OTHER, round)
        reserve(ledger, RUN, plan, by="flower")
        for round in range(rounds):
            charge(ledger, RUN, round)
        files = {"receipt": ledger.receipt(RUN), "ledger": {**totals_of(ledger), "entries": []}}
    paths = []
    for name, holds in files.items():
        paths.append(tmp_path / f"{stem}-{name}.json")
        paths[-1].write_text(json.dumps(holds))
    return paths


def plan_of(folder):
    return plan_from_json(RunRecord.read(folder / "record.json").clients[0].plan)


def test_a_ledger_says_what_was_spent_before_and_what_is_left(said, tmp_path):
    plan = plan_of(said)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    report = report_of(said, policies=[policy], receipts=exported(plan, tmp_path))
    first, *others = report.clients.rows
    once = plan.changed(rounds=1).guarantee().mu().upper
    assert first.spent.agrees
    assert first.spent.by_this_run.upper == pytest.approx(once * 2, rel=1e-9)  # √4 rounds
    assert first.spent.before.upper == pytest.approx(once * 2**0.5, rel=1e-9)  # √2 rounds of the other run
    assert first.spent.left == pytest.approx((4 - 6 * once**2) ** 0.5, rel=1e-9)
    assert float(first.spent.before.text) >= once * 2**0.5
    assert [row.spent for row in others] == [None, None]
    assert report.clients.without_ledger == 2
    assert [each.name for each in report.signatures.extras] == ["policy.toml", "clinic-receipt.json", "clinic-ledger.json"]


def test_a_ledger_refutes_that_nothing_else_was_released(said, tmp_path):
    """It has another run, so the owner's word says nothing of the clients without a ledger either."""
    report = report_of(said, receipts=exported(plan_of(said), tmp_path, source="a"))
    assert report.verdict.decision == "review"
    assert report.verdict.reason == "The owner says that nothing else was released, and other runs are in the ledger of a."
    assert any("No ledger was read for <script>, c, so other" in ground.what for ground in report.verdict.grounds)
    item = report.items[8]
    assert "nothing else was released from the same records" not in item.text
    assert "nothing else was released, which is not so by the ledger of a" in item.text


@pytest.mark.parametrize("state", [{}, {"open": True}, {"alone": True}])
def test_a_ledger_with_this_run_only_refutes_nothing(said, tmp_path, state):
    """What an open run has reserved is its own, and so is a whole budget that one run has."""
    receipt, ledger = exported(plan_of(said), tmp_path, rounds=4, source="a")
    amount = json.loads(receipt.read_text())["charged"]["amount"]
    spent = {"alone": BUDGET.limit, "open": amount / 2}.get(next(iter(state), ""), amount)
    totals = json.loads(ledger.read_text()) | {"spent": spent, "reserved": amount / 2 if "open" in state else 0.0}
    ledger.write_text(json.dumps(totals))
    charged = json.loads(receipt.read_text())
    charged["charged"] |= {"alone": "alone" in state, "amount": min(amount, spent)}
    receipt.write_text(json.dumps(charged | {"open": "open" in state}))
    report = report_of(said, receipts=[receipt, ledger])
    assert not report.clients.rows[0].spent.others
    assert not any("other runs are in" in ground.what for ground in report.verdict.grounds)


def test_a_receipt_alone_says_what_was_charged(said, plain, tmp_path):
    receipt, _ = exported(plan_of(said), tmp_path, source="a/admissions")
    spent = report_of(said, receipts=[receipt]).clients.rows[0].spent
    assert spent.agrees
    assert spent.before is spent.total is spent.left is None
    assert spent.signature == "none"
    grounds = report_of(plain, receipts=[receipt]).verdict.grounds
    assert any("No ledger was read for a, <script>, c" in ground.what for ground in grounds)


def test_a_ledger_that_charged_less_contradicts_the_record(said, tmp_path):
    receipts = exported(plan_of(said), tmp_path, rounds=3, source="a")
    report = report_of(said, receipts=receipts)
    assert report.verdict.decision == "do not release"
    assert "has charged 3 slots, and the record says that 4 were taken" in report.verdict.reason


def test_a_receipt_of_another_plan_contradicts_the_record(said, tmp_path):
    receipts = exported(plan_of(said).changed(noise_multiplier=9.0), tmp_path, source="a")
    verdict = report_of(said, receipts=receipts).verdict
    assert verdict.decision == "do not release"
    assert "another plan" in verdict.reason


def changed_receipt(path, part, **values):
    said = json.loads(path.read_text())
    said[part].update(values)
    path.write_text(json.dumps(said))


@pytest.mark.parametrize("budget", [BUDGET, Budget(epsilon=20.0, delta=1e-5)])
def test_a_receipt_that_charges_more_than_it_costs_would_hide_what_others_have_spent(said, tmp_path, budget):
    receipts = exported(plan_of(said), tmp_path, budget, source="a")
    spent = report_of(said, receipts=receipts).clients.rows[0].spent
    assert spent.agrees
    amount = json.loads(receipts[0].read_text())["charged"]["amount"]
    changed_receipt(receipts[0], "charged", amount=1.5 * amount)
    verdict = report_of(said, receipts=receipts).verdict
    assert verdict.decision == "do not release"
    assert "which is more than its slots cost" in verdict.reason


def test_a_receipt_of_more_slots_than_the_plan_has_contradicts_the_record(said, tmp_path):
    receipts = exported(plan_of(said), tmp_path, source="a")
    changed_receipt(receipts[0], "slots", rounds=6)
    verdict = report_of(said, receipts=receipts).verdict
    assert verdict.decision == "do not release"
    assert "charges 6 slots, which are more than the plan has" in verdict.reason


def test_a_receipt_of_nobody_is_named(said, tmp_path):
    plan = plan_of(said).changed(noise_multiplier=9.0)
    table = report_of(said, receipts=exported(plan, tmp_path, source="elsewhere")).clients
    assert table.unmatched_receipts == ("elsewhere-receipt.json",)
    assert table.without_ledger == 3


def test_a_ledger_without_a_receipt_is_not_passed_over(said, tmp_path):
    """The owner says that there are no other releases, and the ledger has one."""
    receipt, ledger = exported(plan_of(said), tmp_path, source="a")
    assert report_of(said, receipts=[receipt, ledger]).clients.uncounted_ledgers == ()
    alone = report_of(said, receipts=[ledger])
    assert alone.clients.uncounted_ledgers == ("a-ledger.json",)
    assert alone.verdict.decision == "review"
    assert alone.verdict.reason.startswith("No receipt says what this run cost in a-ledger.json")
    changed_receipt(receipt, "charged", amount=None)
    assert report_of(said, receipts=[receipt, ledger]).verdict.reason == alone.verdict.reason
    changed_receipt(receipt, "charged", amount=0.25, unit="epsilon", order=8.0)
    assert report_of(said, receipts=[receipt, ledger]).verdict.reason == alone.verdict.reason


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_exports_of_a_ledger_the_later_one_counts(said, tmp_path, first):
    receipt, ledger = exported(plan_of(said), tmp_path, source="a")
    later = json.loads(ledger.read_text())
    later["head"]["number"] += 1
    later["spent"] += 100.0
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps(later))
    files = [ledger, newer] if first == 0 else [newer, ledger]
    report = report_of(said, receipts=[receipt, *files])
    assert report.clients.rows[0].spent.before.upper > 10
    assert report.verdict.decision == "do not release"


def test_a_huge_cost_is_blamed_on_its_receipt(said, tmp_path):
    receipt, ledger = exported(plan_of(said), tmp_path, source="a")
    changed_receipt(receipt, "charged", amount=10**400)
    with pytest.raises(BadValue, match=r"^receipt = a-receipt\.json cannot be read"):
        report_of(said, receipts=[receipt, ledger])


def test_a_receipt_with_a_wrong_part_is_refused(said, tmp_path):
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps({"source": "a", "charged": {}, "plan": {}}))
    with pytest.raises(BadValue, match=r"receipt"):
        report_of(said, receipts=[path])


def test_policies_say_where_raw_data_lie(plain, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    item = report_of(plain, policies=[policy]).items[18]
    assert (item.status, item.taken_from) == ("open", "policy")
    assert "a (source clinic)" in item.text


# ---------------------------------------------------------------------- between machines


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    run = Run.of(config_of(rounds=4, privacy__randomness="system", report=SAID))
    finished(folder, run, owners_of(run, {0, 3})[0])
    (folder / "run" / "config.toml").write_text("")
    return folder / "run"


def test_a_run_between_machines_counts_answers(deployed):
    report = report_of(deployed)
    assert report.run.between_machines
    assert any("between machines, carried by Flower" in notice for notice in report.run.notices)
    rows = {row.name: row for row in report.clients.rows}
    assert rows["b"].answers["lost"] == 2
    assert rows["a"].answers["sent"] == 4
    record = RunRecord.read(deployed / "record.json")
    for client in record.clients:
        assert rows[client.name].slots == client.slots_taken
    (refusals,) = (each for each in report.leaving.releases if each.what.startswith("refusals"))
    assert refusals.amount == "0 refusals, 2 lost answers"
    assert "refusals are from a fixed list" in refusals.note
    assert "may quote the text of an error" in refusals.note
    assert report.leaving.where == "The run was between machines, carried by Flower 1.41.0."
    assert report.items[9].text.startswith("each owner trusts its own machine")
