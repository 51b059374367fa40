"""Items, audits and the entry for the registry: nothing is called known, compared or private that is not."""

import json
import subprocess
from collections import namedtuple
from importlib.resources import files
from shutil import which

import pytest

from prifedsync.config import ReportConfig
from prifedsync.report.card import card_of
from prifedsync.report.clients import Spent
from prifedsync.report.comparing import comparison_of
from prifedsync.report.contents import report_of
from prifedsync.report.guarantee import stated
from prifedsync.report.html.page import page_of
from prifedsync.report.html.releases import audits as audits_section
from prifedsync.report.items.guarantee import unit
from prifedsync.report.items.run import others
from prifedsync.report.registry import entry_of, tier_of
from prifedsync.report.wording import small
from prifedsync.run.deployment import deployment_of
from prifedsync.values import BadValue

from .runs import TESTED, rewritten, trained

ATTACK = {"mu": {"lower": 0.1}}
STEP = {"passed": True, "checks": [{"name": "noise", "passed": True}]}


def audit(tmp_path, holds):
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(holds))
    return [path]


def item(report, number):
    return report.items[number - 1]


def page_of_audits(report):
    return str(audits_section(report))


# ---------------------------------------------------------------------- audits


@pytest.mark.parametrize(
    "holds",
    [
        {"mu": {"lower": float("nan")}},
        {"mu": {"lower": float("inf")}},
        {"mu": {"lower": 10**400}},
        {"mu": {"lower": True}},
        {"epsilon": {"lower": float("nan")}, "delta": 1e-5},
        {"epsilon": {"lower": 1.0}, "delta": float("nan")},
        {"epsilon": {"lower": 1.0}, "delta": -1},
        ATTACK | {"confidence": float("nan")},
        ATTACK | {"band": [[0.1, float("nan"), 0.9]]},
        ATTACK | {"band": [[0.1, 0.9]]},
        {"passed": True, "checks": [{"name": "noise", "passed": "false"}]},
        {"passed": "no", "checks": [{"name": "noise", "passed": True}]},
        STEP | ATTACK,
    ],
)
def test_what_is_no_number_is_refused(plain, tmp_path, holds):
    with pytest.raises(BadValue, match=r"audit = audit\.json") as error:
        report_of(plain, audits=audit(tmp_path, holds))
    assert "\n" not in str(error.value)


def test_an_audit_without_checks_is_refused(plain, tmp_path):
    with pytest.raises(BadValue, match="has no checks"):
        report_of(plain, audits=audit(tmp_path, {"passed": True, "checks": []}))


@pytest.mark.parametrize("holds", [STEP, ATTACK])
def test_an_audit_that_failed_is_broken_whatever_its_checks(plain, tmp_path, holds):
    report = report_of(plain, audits=audit(tmp_path, holds | {"passed": False}))
    assert report.audits[0].broken
    assert report.verdict.decision == "do not release"


@pytest.mark.parametrize(("high", "broken"), [(0.99, False), (0.5, True)])
def test_a_band_below_the_certified_curve_breaks_it(plain, tmp_path, high, broken):
    """At μ = 0.5 and α = 0.01 the curve has 0.97."""
    report = report_of(plain, audits=audit(tmp_path, ATTACK | {"band": [[0.01, 0.4, high]]}))
    assert report.audits[0].broken == broken
    assert ("broken" in page_of_audits(report)) == broken


def test_without_a_claim_nothing_is_compared(plain, tmp_path):
    bare = trained(tmp_path / "run", privacy__mechanism="none", privacy__noise_multiplier=None)
    for holds in (ATTACK, STEP, {"epsilon": {"lower": 1.0}, "delta": 1e-5}):
        report = report_of(bare, audits=audit(tmp_path, holds))
        page = page_of_audits(report)
        assert "not compared" in page
        assert "within the claim" not in page
        assert "∞" not in page
        assert item(report, 17).status == "open"


def test_an_infinite_claim_is_no_claim(plain, copied, tmp_path):
    folder = rewritten(copied(plain), lambda data: data["guarantee"]["mu"].update(upper=None))
    report = report_of(folder, audits=audit(tmp_path, ATTACK))
    assert "not compared" in page_of_audits(report)
    assert "∞" not in report.audits[0].sentence


def test_an_audit_is_not_tied_to_a_run(plain, tmp_path):
    report = report_of(plain, audits=audit(tmp_path, STEP))
    assert "names no run" in page_of_audits(report)
    assert "names no run" in item(report, 17).text
    assert item(report, 17).status == "filled"


# ---------------------------------------------------------------------- records of earlier versions


def earlier(data, version):
    """The same record as versions 4 and 3 had it."""
    data["schema_version"] = version
    data.pop("deployment")
    for name in ("merge", "server", "server_rate", "averaging", "report"):
        data["config"].pop(name)
    if version == 3:
        for name in ("attempts_used", "uploads_lost", "settings"):
            data.pop(name)
        data["guarantee"].pop("views", None)
        data["config"]["privacy"].pop("masks")
        for plan in data["shared"]["plan"]:
            plan.pop("attempts")
        for client in data["clients"]:
            client.pop("slots_taken")


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("kind", ["plain", "sampled"])
def test_earlier_records_have_a_report(request, copied, version, kind):
    today = request.getfixturevalue(kind)
    folder = rewritten(copied(today), lambda data: earlier(data, version))
    report = report_of(folder)
    assert report.guarantee.mu == report_of(today).guarantee.mu
    assert item(report, 14).status == "open"
    assert "not in this record" in item(report, 14).text
    assert "not in this record" in page_of(report)
    assert report.guarantee.mu.text in card_of(report)


def test_numbers_that_a_record_does_not_have_follow_from_its_plans(sampled, copied):
    def less(data):
        earlier(data, 4)
        data["guarantee"].pop("worst_case_participation")
        data["guarantee"].pop("curve")

    today = report_of(sampled)
    report = report_of(rewritten(copied(sampled), less))
    for name in ("mu", "epsilon"):
        found, known = report.guarantee.if_others_choose[name].upper, today.guarantee.if_others_choose[name].upper
        assert found == pytest.approx(known, rel=1e-9)
    assert report.guarantee.hits_at_1_percent.upper == pytest.approx(today.guarantee.hits_at_1_percent.upper, rel=1e-9)
    assert any("not in this record" in warning for warning in report.warnings)
    assert page_of(report)
    assert card_of(report)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.pop("participants"),
        lambda line: line.update(released=3),
        lambda line: line.update(released={"mean": "high", "worst": 0.5}),
        lambda line: line.update(participants="all"),
        lambda line: line.update(round=float("inf")),
    ],
)
def test_a_malformed_line_is_blamed_on_the_log(sampled, copied, change):
    folder = copied(sampled)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    change(lines[0])
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadValue, match=r"rounds\.jsonl") as error:
        report_of(folder)
    assert "record.json" not in str(error.value)


# ---------------------------------------------------------------------- items that are not known


def test_utility_is_open_while_groups_are_not_measured(sampled, tmp_path):
    known = item(report_of(sampled), 18)
    assert "per group" in known.title
    assert known.status == "open"
    assert "missing: scores per group, which are not measured" in known.text
    bare = item(report_of(trained(tmp_path / "run", TESTED)), 18)
    assert "missing: a model to compare with (alone or non-private), scores per group" in bare.text
    assert "released model" in bare.text


def test_the_unit_is_said_in_words_of_the_real_world(plain):
    known = {
        (): "not said: what one record is in the real world, how many records a person may have",
        ("report.record_is=one stay",): "one record: one stay; not said: how many records a person may have",
        ("report.records_of_person=3",): "a person has at most 3; not said: what one record is in the real world",
    }
    for words, text in known.items():
        found = item(report_of(plain, words=words), 5)
        assert found.status == "open"
        assert text in found.text
    said = item(report_of(plain, words=["report.record_is=one stay", "report.records_of_person=3"]), 5)
    assert (said.status, said.taken_from) == ("filled", "owner's words")
    assert said.text.startswith("one record: one stay; a person has at most 3. Several records together: 2 records: ε ≤")


def test_where_all_records_count_as_one_nobody_is_asked_how_many(plain):
    """As where noise is added to a whole round: no table of groups is needed."""
    whole = namedtuple("Guarantee", "unit groups")("record", ())
    words = ReportConfig(record_is="one stay")
    known = namedtuple("Known", "guarantee words")(whole, words)
    assert unit(known) == (
        "filled", "one record: one stay. The numbers hold for all records of a client together", "owner's words"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "words", "status", "text"),
    [
        (["rounds"], [], "filled", "4 rounds, fixed before training, chosen by the library from public numbers"),
        ([], [], "open", "Who chose that number is not said"),
        ([], ["report.rounds_chosen_by=the board"], "filled", "chosen by: the board"),
    ],
)
def test_who_chose_the_rounds_is_answered(plain, copied, chosen, words, status, text):
    folder = rewritten(copied(plain), lambda data: data["config"].update(chosen=chosen))
    found = item(report_of(folder, words=words), 11)
    assert found.status == status
    assert text in found.text


def test_a_full_batch_is_not_sampled(plain, sampled):
    assert "all records in each batch" in item(report_of(plain), 12).text
    assert "oisson" not in item(report_of(plain), 12).text
    assert "batches of 8 records on average (Poisson)" in item(report_of(sampled), 12).text


def test_spare_attempts_are_named_with_what_is_charged(tmp_path):
    folder = trained(tmp_path / "run", privacy__masks=True, privacy__attempts=2, privacy__least_clients=2)
    assert "up to 2 spare attempts, each of which is charged as a round is" in item(report_of(folder), 12).text


def test_without_noise_nothing_is_said_of_noise(tmp_path):
    folder = trained(tmp_path / "run", privacy__mechanism="none", privacy__noise_multiplier=None)
    text = item(report_of(folder), 16).text
    assert "no noise is drawn" in text
    assert "secret" not in text
    assert "grid" not in text


def test_columns_that_are_not_listed_are_columns(plain, copied):
    folder = copied(plain)
    rules = json.loads((folder / "preprocessing.json").read_text())
    rules["columns"] = [f"column-{at}" for at in range(64)]
    (folder / "preprocessing.json").write_text(json.dumps(rules))
    text = item(report_of(folder), 20).text
    assert "64 columns" in text
    assert "and 59 more columns" in text
    assert "client" not in text


class Rows:
    """Known things with clients' ledgers, and nothing else."""

    def __init__(self, spent, words=""):
        row = namedtuple("Row", "name spent")
        table = namedtuple("Table", "rows without_ledger")
        self.clients = table(
            tuple(row(f"c{at}", each) for at, each in enumerate(spent)), sum(each is None for each in spent)
        )
        self.words = ReportConfig(other_releases=words)
        self.sources = namedtuple("Sources", "public_data")(False)


def spent(before=1.25, left=0.75):
    return Spent(
        source="a", unit="mu", agrees=True, why="", budget=2.0, by_this_run=stated(0.5),
        before=None if before is None else stated(before), total=None, left=left, signature="",
    )  # fmt: skip


def test_what_is_left_of_a_budget_is_said():
    status, text, taken_from = others(Rows([spent(), spent(left=0.56789)]))
    assert (status, taken_from) == ("filled", "ledger")
    assert "c0: μ ≤ 1.250 spent or reserved by other runs, 0.7500" in text
    assert "0.5678 left" in text  # rounded down


@pytest.mark.parametrize("missing", [None, spent(before=None, left=None), spent(left=None)])
@pytest.mark.parametrize("words", ["", "there are none"])
def test_ledgers_of_some_clients_leave_the_item_open(missing, words):
    status, text, _ = others(Rows([spent(), missing], words))
    assert status == "open"
    assert "not known for 1 client" in text
    assert words in text


def test_clients_that_are_not_listed_are_counted():
    status, text, _ = others(Rows([spent()] * 25))
    assert status == "filled"
    assert "5 clients not listed here" in text


def test_access_and_keys_must_be_said(plain, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('client = "a"\n[source]\nname = "north"\n')
    place = "report.data_location='at the clinics'"
    access = "report.data_access='two administrators'"
    for words, status in (([], "open"), ([place], "open"), ([access], "filled"), ([place, access], "filled")):
        found = item(report_of(plain, words=words, policies=[policy]), 19)
        assert found.status == status
        assert ("not said" in found.text) == (status == "open")
    assert item(report_of(plain, words=[place]), 19).status == "open"


# ---------------------------------------------------------------------- rehearsals, and the registry


def deployed(folder, **changes):
    """The same run, as if it had been between machines."""

    def with_deployment(data):
        names = [client["name"] for client in data["clients"]]
        how = {"carrier": "Flower 1.41.0", "participation": "clients"} | changes
        data["deployment"] = deployment_of([{"round": 1}], names, **how)

    return rewritten(folder, with_deployment)


@pytest.mark.parametrize("rehearsal", [True, False])
def test_a_rehearsal_is_not_between_machines(said, copied, rehearsal):
    report = report_of(deployed(copied(said), rehearsal=rehearsal))
    trusted = item(report, 10).text
    assert ("whoever ran it could read all records" in trusted) == rehearsal
    entry = entry_of(report)
    description = entry["deployment"]["basic"]["description"]
    where = entry["deployment"]["deployment_model"]["model_name_details"] + description
    assert ("a rehearsal on one machine" in where) == rehearsal
    assert ("between machines" in where) == (not rehearsal)
    assert description.count("rehears") == rehearsal
    assert tier_of(report) == (1 if rehearsal else 3)


def test_participation_that_the_server_chose_is_said(said, copied):
    report = report_of(deployed(copied(said), participation="server", share=0.5))
    assert "the server decides who takes part" in item(report, 11).text
    assert "50% of the clients asked in a round, by the server's choice, and every round charged" in item(report, 12).text


def test_without_a_choice_everybody_is_asked(said, copied):
    report = report_of(deployed(copied(said)))
    assert "every client is asked in every round" in item(report, 11).text
    assert "participation 100%" in item(report, 12).text


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "prifedsync deploy serve SERVER"),
        ({"rehearsal": True}, "prifedsync deploy local PROJECT"),
    ],
)
def test_a_run_between_machines_is_repeated_by_its_parties(said, copied, changes, command):
    folder = rewritten(deployed(copied(said), **changes), lambda data: data.update(warnings=[]))
    found = report_of(folder).reproducing
    assert found.commands[0] == command
    assert ("all owners" in found.exactly) == (not changes)


def test_a_tier_needs_a_finite_epsilon(said, copied):
    folder = rewritten(copied(said), lambda data: data["guarantee"]["epsilon"].update(upper=None))
    assert tier_of(report_of(folder)) == 1


# ---------------------------------------------------------------------- δ


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-5, "1e-5"), (0.03, "0.03"), (1.23456749e-6, "1.23457e-6"), (0.1234561, "0.123457"), (9.999999e-6, "1e-5"),
     (1e-12, "1e-12"), (5e-324, "4.94066e-324"), (0.0, "0"), (0.5, "0.5")],
)  # fmt: skip
def test_no_delta_is_printed_smaller_than_it_is(value, text):
    assert small(value) == text or value == 5e-324
    assert float(small(value)) >= value


def test_a_comparison_prints_no_smaller_delta(plain, copied):
    folder = rewritten(copied(plain), lambda data: data["guarantee"].update(delta=1.2345674e-5))
    found = comparison_of([report_of(folder)])
    assert "1.23457e-5" in found.markdown
    assert "1.23456e-5" not in found.markdown


@pytest.mark.skipif(which("node") is None, reason="node runs the script of the page")
@pytest.mark.parametrize(
    ("power", "shown"),
    [
        (-5, "ε ≤ 2 at δ = 1e-5."),
        (-4.5, "ε ≤ 2 at δ = 3.2e-5. This was computed at δ = 1e-5, and so it holds here too."),
        (-7, "ε is not computed for so small a δ: 1e-7."),
    ],
)
def test_the_slider_claims_no_epsilon_for_a_smaller_delta(tmp_path, power, shown):
    script = (files("prifedsync.report.html") / "assets" / "report.js").read_text(encoding="utf-8")
    start, end = script.index('  const deltas = data("deltas");'), script.index("  // ---------- tables that are sorted")
    around = """
const output = {}, input = { value: "%s", setAttribute() {}, addEventListener() {} };
const document = { getElementById: (id) => (id === "delta" ? input : output) };
const data = () => ({ rows: [[1e-4, "1"], [1e-5, "2"]], mostUnits: null });
%s
console.log(output.textContent);
"""
    path = tmp_path / "slider.js"
    path.write_text(around % (power, script[start:end]), encoding="utf-8")
    ran = subprocess.run(["node", path], check=True, capture_output=True, text=True, encoding="utf-8")
    assert ran.stdout.strip() == shown
