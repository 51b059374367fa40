"""Items, audits and the entry for the registry: nothing is called known, compared or private that is not."""

import json

import pytest

from prifedsync.report.contents import report_of
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
