"""The model card, the entry for the registry, and a comparison of runs: what is in them, and what nobody can put there."""

import dataclasses
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

import prifedsync
from prifedsync.report.card import card_of, text
from prifedsync.report.comparing import comparison_of
from prifedsync.report.contents import report_of
from prifedsync.report.registry import as_yaml, entry_of, sector_note, tier_of
from prifedsync.run.deployment import deployment_of
from prifedsync.values import BadValue

from .runs import SAID, TESTED, rewritten, trained

SCHEMA = os.environ.get("PRIFEDSYNC_REGISTRY_SCHEMA")
NO_NOISE = {"privacy__mechanism": "none", "privacy__noise_multiplier": None}
TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}


def test_a_card_has_what_readers_of_a_model_need(sampled):
    report = report_of(sampled, words=["report.purpose=warns of sepsis"])
    card = card_of(report)
    guarantee = report.guarantee
    parts = [
        "# softmax on python:clients",
        "- Source: python:clients",
        "**review.**",
        "- Purpose: warns of sepsis",
        "- Owner: not said",
    ]
    parts += ["| released model | accuracy |", f"μ ≤ {guarantee.mu.text}", f"ε ≤ {guarantee.epsilon.text}"]
    parts += [text(rate.sentence) for rate in report.attacks[0].rates]
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


def test_a_card_has_the_numbers_of_a_group(plain):
    report = report_of(plain)
    card = card_of(report)
    for group in report.guarantee.groups:
        line = (
            f"- {group.records} records of one person together: ε ≤ {group.epsilon.text} at δ = 1e-5, μ ≤ {group.mu.text}"
        )
        assert line in card
        assert group.epsilon.upper > report.guarantee.epsilon.upper


def test_a_card_of_a_run_without_scores_has_no_table_of_dashes(plain):
    card = card_of(report_of(plain))
    assert "Not measured." in card
    assert "bootstrap" not in card
    assert "The smallest client" not in card


def test_a_card_without_a_guarantee_speaks_of_none(tmp_path):
    card = card_of(report_of(trained(tmp_path / "run", TESTED, **NO_NOISE)))
    assert "Scores are computed without noise.\n" in card
    assert "records of one person together" not in card
    assert "no guarantee: trained without noise." in card


def test_a_card_names_the_model_of_the_smallest_client(sampled):
    report = report_of(sampled)
    used = report.utility.smallest.scores["released"]
    assert f"The smallest client, a, has accuracy {used:.3f} (released model)." in card_of(report)


def of_persons(data):
    for plan in data["shared"]["plan"]:
        plan |= {"unit": "person", "copies": 2, "rows_per_unit": 4}
    data["unit"] = data["guarantee"]["unit"] = "person"
    data["guarantee"]["copies"] = 2


def test_a_card_counts_persons_and_says_who_is_counted_twice(plain, copied):
    card = card_of(report_of(rewritten(copied(plain), of_persons)))
    sizes = "- Persons of a client: 40 to 60, 150 in all; a person of several clients counts at each of them\n"
    assert sizes in card
    assert "the unit is a person" in card
    assert "records of one person together" not in card


def test_a_card_of_a_masked_simulation_claims_no_masks(tmp_path):
    card = card_of(report_of(trained(tmp_path / "run", privacy__masks=True)))
    assert "All clients were in one process, so masks were simulated." in card
    assert card.count("Masks were simulated: whoever ran the process has all keys.") == 1


def test_a_card_of_a_rehearsal_says_so_and_not_between_machines(said, copied):
    how = {"carrier": "Flower 1.41.0", "participation": "clients", "rehearsal": True}
    deployment = deployment_of([{"round": 1}], ["a", "<script>", "c"], **how)
    card = card_of(report_of(rewritten(copied(said), lambda data: data.update(deployment=deployment))))
    assert "- This was a rehearsal on one machine. No owner has charged it." in card
    assert "**do not release.**" in card
    assert "between machines" not in card.replace("the deployment itself, between the machines", "")


# ---------------------------------------------------------------------- the registry


def problems(value, schema, where=""):
    """What a value breaks of the part of JSON Schema that the registry uses."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[kind]) and not isinstance(value, bool) for kind in kinds):
        return [f"{where}: {value!r} is no {kinds}"]
    found = [f"{where}: {value!r} is not allowed"] if value not in schema.get("enum", [value]) else []
    if schema.get("format") == "date" and not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        found += [f"{where}: {value!r} is no date"]
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
    if not SCHEMA:
        pytest.skip("PRIFEDSYNC_REGISTRY_SCHEMA does not name the registry's schema")
    return yaml.safe_load(Path(SCHEMA).read_text(encoding="utf-8"))


def unfinished(folder):
    (folder / "record.json").unlink()
    return folder


@pytest.mark.parametrize("kind", ["plain", "said", "sampled", "unfinished", "no noise"])
def test_entries_are_valid(kind, schema, request, tmp_path, copied):
    if kind == "unfinished":
        folder = unfinished(copied(request.getfixturevalue("plain")))
    elif kind == "no noise":
        folder = trained(tmp_path / "run", **NO_NOISE)
    else:
        folder = request.getfixturevalue(kind)
    entry = entry_of(report_of(folder))
    read = yaml.safe_load(as_yaml(entry))
    assert read == entry
    assert problems(read, schema) == []


def test_the_validator_sees_what_is_wrong(schema):
    assert len(problems({"tier": 4, "more": 1, "status": 3, "deployment": {}}, schema)) == 5


@pytest.mark.parametrize("said_date", ["", "next spring", "2026-02-30"])
def test_a_date_that_nobody_has_said_is_that_of_the_record(said, said_date):
    """The registry's own check refuses what is no date."""
    report = report_of(said, words=[f"report.date={json.dumps(said_date)}"])
    entry = entry_of(report)["deployment"]
    written = datetime.fromtimestamp((said / "record.json").stat().st_mtime, UTC).strftime("%Y-%m-%d")
    assert entry["basic"]["publication_date"] == written
    assert "The date is when the record was written" in entry["administrative"]["notes"]
    assert "when the record was written" not in entry_of(report_of(said))["deployment"]["administrative"]["notes"]


def test_what_was_said_is_in_the_entry(said):
    entry = entry_of(report_of(said))
    basic = entry["deployment"]["basic"]
    assert (entry["tier"], entry["url_slug"], entry["status"]) == (3, "sepsis-warning", "Draft")
    assert basic["data_curators"] == ["Clinic North", "Clinic South"]
    assert (basic["data_product_sector"], basic["publication_date"]) == ("Healthcare", "2026-03-01")
    loss = entry["deployment"]["privacy_loss"]
    assert entry["deployment"]["dp_variant"]["unprotected_quantities"].startswith("timings; the roster")
    assert entry["deployment"]["dp_variant"]["data_domain"] == SAID["population"]
    details = entry["deployment"]["deployment_model"]["release_type_details"]
    assert details == "the owner says that nothing else was released from the same records"
    assert loss["privacy_unit_details"].startswith("Two data sets differ in one record replaced;")
    assert ". One record: one stay in intensive care;" in loss["privacy_unit_details"]
    assert loss["privacy_parameters"] == {"epsilon": 1.994, "delta": 1e-5}  # 1.9931, rounded up
    assert "μ ≤ 0.5001" in loss["privacy_parameters_details"]
    assert entry["deployment"]["deployment_model"]["model_name"] == "Federated"


def test_a_sector_that_the_registry_does_not_know_is_not_dropped(said):
    report = report_of(said, words=["report.sector=Retail"])
    basic = entry_of(report)["deployment"]["basic"]
    assert "data_product_sector" not in basic
    assert "Sector: Retail." in basic["description"]
    assert sector_note(report).startswith("the registry has no sector Retail")
    assert sector_note(report_of(said)) == ""
    assert "Sector" not in entry_of(report_of(said))["deployment"]["basic"]["description"]


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
    (found,) = yaml.safe_load(as_yaml({"key": {"inner": text}}))["key"].values()
    assert isinstance(found, str)
    assert found == text or not text.isprintable()


def test_names_are_text_where_the_registry_reads_markdown(said):
    """The registry renders texts as Markdown with formulas."""
    words = ['report.purpose="$x$ <script> [a](b) `c` _d_"', 'report.owner="A*; B~"']
    basic = entry_of(report_of(said, words=words))["deployment"]["basic"]
    assert basic["intended_use"] == r"\$x\$ &lt;script&gt; \[a\](b) \`c\` \_d\_"
    assert basic["data_curators"] == [r"A\*", r"B\~"]


@pytest.mark.parametrize("number", [1e-5, 1e-12, 4.375, 2.0, 1, 1e22])
def test_numbers_are_numbers_in_yaml(number):
    assert yaml.safe_load(as_yaml({"key": number})) == {"key": number}


# ---------------------------------------------------------------------- several runs


def test_runs_stand_from_the_smallest_mu_to_the_largest(sampled, said, tmp_path):
    bare = trained(tmp_path / "bare", **NO_NOISE)
    reports = [report_of(folder) for folder in (bare, sampled, said)]
    found = comparison_of(reports)
    assert [row.mu and row.mu.text for row in found.rows] == [
        reports[2].guarantee.mu.text, reports[1].guarantee.known["mu"].text, None
    ]  # fmt: skip
    assert found.rows[1].mean == next(each.mean for each in reports[1].utility.scores if each.model == "released")
    assert found.markdown.count("\n") == 4
    assert found.latex.count(r"\\") == 4
    assert r"$\mu$ $\leq$" in found.latex
    assert any("add up" in warning for warning in found.warnings)
    assert json.loads(found.text())["rows"][0]["mu"]["text"] == reports[2].guarantee.mu.text


def test_cells_are_those_of_the_run(sampled, plain, tmp_path):
    """The mean is not the worst client's score, and a run without noise is no simulation."""
    seeded = trained(tmp_path / "seeded", TESTED, privacy__randomness="seeded", rule__name="interpolate")
    reports = {report.folder: report for report in map(report_of, (sampled, plain, seeded))}
    found = comparison_of([dataclasses.replace(report, folder=name) for name, report in reports.items()])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.markdown.splitlines()[2:]]
    by_folder = {row.folder: cells for row, cells in zip(found.rows, rows, strict=True)}
    assert by_folder["seeded"][0] == "seeded (simulation)"
    assert [by_folder["seeded"][5], by_folder["run"][5]] == ["personal models", "released model"]
    assert r"seeded (simulation) & " in found.latex
    for name, report in reports.items():
        used = [each for each in report.utility.scores if each.model == report.utility.in_use]
        cells = by_folder[name]
        known = report.guarantee.known
        assert cells[1:5] == [known["mu"].text, known["epsilon"].text, "1e-5", "accuracy"]
        assert cells[8] == report.verdict.decision
        for each in used:
            assert each.worst < each.mean
            assert cells[6] == f"{each.mean:.3f} ({each.interval.low:.3f}–{each.interval.high:.3f})"
            assert cells[7] == f"{each.worst:.3f}"


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("[2em] x", "{[}2em] x"),
        ("* x", "{*} x"),
        ("a<b>|c", r"a\textless{}b\textgreater{}\textbar{}c"),
        ("a\nb", r"a\textbackslash{}nb"),
    ],
)
def test_a_folder_is_text_in_latex(plain, name, cell):
    """After the end of a line, [ and * would belong to it."""
    found = comparison_of([dataclasses.replace(report_of(plain), folder=name)])
    assert found.latex.splitlines()[4].startswith(f"{cell} & ")


def test_scores_that_nobody_has_are_dashes(plain):
    (cells,) = comparison_of([report_of(plain)]).markdown.splitlines()[2:]
    assert "| – | – |" in cells


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


# ---------------------------------------------------------------------- the same records, or others


def table(folder, columns=("x", "y")):
    """A table of two clients in a file."""
    folder.mkdir()
    path = folder / "records.csv"
    lines = [f"{client},{at % 2},{at / 40},{1 - at / 40}" for at in range(40) for client in ("north", "south")]
    path.write_text("\n".join(["client,label,x,y", *lines]))
    return path


def on(path, folder, randomness="system", **data):
    """A run on this table."""
    config = {
        "rounds": 2,
        "data": {
            "source": "csv", "path": str(path), "client_column": "client", "partition": "column", "classes": 2,
            "ranges": {"*": (0.0, 1.0)}, "test_fraction": 0.0, **data,
        },
        "local": {"batch": "full", "learning_rate": 0.5},
        "privacy": {"clip_norm": 1.0, "noise_multiplier": 8.0, "randomness": randomness},
    }  # fmt: skip
    prifedsync.train(config, out=folder, progress=False)
    return report_of(folder)


def warnings_of(*reports):
    return " ".join(comparison_of(reports).warnings)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Two runs on one table, one on fewer of its columns, and one on the table of another hospital."""
    place = tmp_path_factory.mktemp("hospitals")
    one, other = table(place / "one"), table(place / "other")
    return {
        "first": on(one, place / "first"),
        "second": on(one, place / "second"),
        "fewer": on(one, place / "fewer", columns=["x"]),
        "seeded": on(one, place / "seeded", randomness="seeded"),
        "other": on(other, place / "third"),
    }


def test_runs_on_one_table_add_up(hospitals):
    warned = warnings_of(hospitals["first"], hospitals["second"])
    assert "Runs on the same records add up" in warned
    assert "cannot be told" not in warned
    assert "different data" not in warned


def test_tables_of_two_hospitals_do_not_add_up(hospitals):
    warned = warnings_of(hospitals["first"], hospitals["other"])
    assert "different data" in warned
    assert "add up" not in warned
    mixed = warnings_of(hospitals["first"], hospitals["other"], hospitals["second"])
    assert "add up" in mixed


def test_other_columns_of_one_table_are_other_data_and_add_up(hospitals):
    warned = warnings_of(hospitals["first"], hospitals["fewer"])
    assert "different data" in warned
    assert "Runs on the same records add up" in warned


def test_simulations_do_not_add_up(hospitals):
    warned = warnings_of(hospitals["first"], hospitals["seeded"])
    assert "simulations" in warned
    assert "add up" not in warned


def test_records_from_python_may_be_the_same(plain, said):
    warned = warnings_of(report_of(plain), report_of(said))
    assert "cannot be told from their files. Runs on the same records add up" in warned


def test_no_path_is_printed(hospitals):
    first, other = hospitals["first"], hospitals["other"]
    found = comparison_of([first, other])
    place = "records.csv"
    assert place not in found.text()
    assert "/one/" not in first.text()
    assert first.reproducing.records != other.reproducing.records
