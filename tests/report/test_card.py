"""The model card, the entry for the registry, and a comparison of runs: what is in them, and what nobody can put there."""

import json
import os
from pathlib import Path

import pytest

from prifedsync.report.card import card_of
from prifedsync.report.comparing import comparison_of
from prifedsync.report.contents import report_of
from prifedsync.report.registry import as_yaml, entry_of, tier_of
from prifedsync.values import BadValue

from .runs import SAID, TESTED, trained

SCHEMA = Path(
    os.environ.get("PRIFEDSYNC_REGISTRY_SCHEMA") or Path(__file__).parents[3] / "shared" / "facts" / "registry-schema.yaml"
)
TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}


def test_a_card_has_what_readers_of_a_model_need(sampled):
    report = report_of(sampled, words=["report.purpose=warns of sepsis"])
    card = card_of(report)
    guarantee = report.guarantee
    parts = ["# softmax on python:clients", "**review.**", "- Purpose: warns of sepsis", "- Owner: not said"]
    parts += ["| released model | accuracy |", f"μ ≤ {guarantee.mu.text}", f"ε ≤ {guarantee.epsilon.text}"]
    parts += ["computed without noise", "models/global.safetensors", report.signatures.files[0].sha256]
    for part in parts:
        assert part in card
    (released,) = (each for each in report.utility.scores if each.model == "released")
    assert f"{released.mean:.3f} ({released.interval.low:.3f}–{released.interval.high:.3f})" in card


def test_no_name_is_read_as_html_or_markdown(tmp_path):
    words = {"name": "<script>alert(1)</script>", "purpose": "a | b\n# heading", "owner": "[x](javascript:1)"}
    report = report_of(trained(tmp_path / "run", TESTED, report=words))
    card = card_of(report)
    assert "<script" not in card
    assert "&lt;script&gt;" in card
    assert "\n# heading" not in card
    assert "[x]" not in card
    assert report.clients.rows[1].name == "<script>"
    assert json.loads(report.text())["clients"]["rows"][1]["name"] == "<script>"


def test_a_card_of_an_unfinished_run_says_so(plain, copied):
    folder = copied(plain)
    (folder / "record.json").unlink()
    card = card_of(report_of(folder))
    assert "**do not release.**" in card
    assert "Not measured." in card
    assert "no guarantee is stated" in card


# ---------------------------------------------------------------------- the registry


def problems(value, schema, where=""):
    """What a value breaks of the part of JSON Schema that the registry uses."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[kind]) and not isinstance(value, bool) for kind in kinds):
        return [f"{where}: {value!r} is no {kinds}"]
    found = [f"{where}: {value!r} is not allowed"] if value not in schema.get("enum", [value]) else []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        if schema.get("additionalProperties", True) is False:
            found += [f"{where}.{name} is unknown" for name in value if name not in known]
        for name in value:
            found += problems(value[name], known.get(name, {}), f"{where}.{name}")
    if isinstance(value, list):
        found += [f"{where} is too short"] if len(value) < schema.get("minItems", 0) else []
        for each in value:
            found += problems(each, schema.get("items", {}), where)
    return found


@pytest.fixture(scope="module")
def schema():
    yaml = pytest.importorskip("yaml")
    if not SCHEMA.is_file():
        pytest.skip(f"{SCHEMA} is not there; PRIFEDSYNC_REGISTRY_SCHEMA may name it")
    return yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))


def unfinished(folder):
    (folder / "record.json").unlink()
    return folder


@pytest.mark.parametrize("kind", ["plain", "said", "sampled", "unfinished", "no noise"])
def test_entries_are_valid(kind, schema, request, tmp_path, copied):
    yaml = pytest.importorskip("yaml")
    if kind == "unfinished":
        folder = unfinished(copied(request.getfixturevalue("plain")))
    elif kind == "no noise":
        folder = trained(tmp_path / "run", privacy__mechanism="none", privacy__noise_multiplier=None)
    else:
        folder = request.getfixturevalue(kind)
    entry = entry_of(report_of(folder))
    read = yaml.safe_load(as_yaml(entry))
    assert read == entry
    assert problems(read, schema) == []


def test_the_validator_sees_what_is_wrong(schema):
    assert len(problems({"tier": 4, "more": 1, "status": 3, "deployment": {}}, schema)) == 5


def test_what_was_said_is_in_the_entry(said):
    entry = entry_of(report_of(said))
    basic = entry["deployment"]["basic"]
    assert (entry["tier"], entry["url_slug"], entry["status"]) == (3, "sepsis-warning", "Draft")
    assert basic["data_curators"] == ["Clinic North", "Clinic South"]
    assert (basic["data_product_sector"], basic["publication_date"]) == ("Healthcare", "2026-03-01")
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 1.994, "delta": 1e-5}  # 1.9931, rounded up
    assert "μ ≤ 0.5001" in loss["privacy_parameters_details"]
    assert entry["deployment"]["deployment_model"]["model_name"] == "Federated"


@pytest.mark.parametrize(
    ("words", "tier"),
    [
        ([], 3),
        (['report.reason=""'], 2),
        (['report.tuning="not said"'], 2),
        (['report.purpose=""'], 1),
    ],
)
def test_a_tier_is_as_high_as_what_is_known(said, words, tier):
    assert tier_of(report_of(said, words=words)) == tier


def test_a_simulation_has_the_first_tier(tmp_path):
    assert tier_of(report_of(trained(tmp_path / "run", report=SAID, privacy__randomness="seeded"))) == 1


@pytest.mark.parametrize("text", ["a: b", "- x", "#", "'", '"', "\\", "é\u2028\x7f\n", "yes", "1e-5", "{}", "μ ≤ 1"])
def test_texts_are_texts_in_yaml(text):
    yaml = pytest.importorskip("yaml")
    (found,) = yaml.safe_load(as_yaml({"key": {"inner": text}}))["key"].values()
    assert isinstance(found, str)
    assert found == text or not text.isprintable()


@pytest.mark.parametrize("number", [1e-5, 1e-12, 4.375, 2.0, 1, 1e22])
def test_numbers_are_numbers_in_yaml(number):
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(as_yaml({"key": number})) == {"key": number}


# ---------------------------------------------------------------------- several runs


def test_runs_stand_from_the_smallest_mu_to_the_largest(sampled, said, tmp_path):
    bare = trained(tmp_path / "bare", privacy__mechanism="none", privacy__noise_multiplier=None)
    reports = [report_of(folder) for folder in (bare, sampled, said)]
    found = comparison_of(reports)
    assert [row.mu and row.mu.text for row in found.rows] == [
        reports[2].guarantee.mu.text, reports[1].guarantee.mu.text, None
    ]  # fmt: skip
    assert found.rows[1].mean == next(each.mean for each in reports[1].utility.scores if each.model == "released")
    assert found.markdown.count("\n") == 4
    assert found.latex.count(r"\\") == 4
    assert r"$\mu$ $\leq$" in found.latex
    assert any("add up" in warning for warning in found.warnings)
    assert json.loads(found.text())["rows"][0]["mu"]["text"] == reports[2].guarantee.mu.text


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"privacy__delta": 1e-6}, "different δ"),
        ({"privacy__randomness": "seeded"}, "simulations"),
    ],
)
def test_numbers_that_cannot_be_compared_are_named(plain, tmp_path, changes, warned):
    found = comparison_of([report_of(plain), report_of(trained(tmp_path / "run", **changes))])
    assert any(warned in warning for warning in found.warnings)


def test_an_unfinished_run_is_not_compared(plain, copied):
    with pytest.raises(BadValue, match="is not finished"):
        comparison_of([report_of(plain), report_of(unfinished(copied(plain)))])
