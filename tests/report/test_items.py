"""Items, audits and the entry for the registry: nothing is called known, compared or private that is not."""

import json

import pytest

from prifedsync.report.card import card_of
from prifedsync.report.contents import report_of
from prifedsync.report.html.page import page_of
from prifedsync.report.html.releases import audits as audits_section
from prifedsync.values import BadValue

from .runs import rewritten, trained

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
