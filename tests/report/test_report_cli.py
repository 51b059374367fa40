"""`prifedsync report`, and the report that training leaves."""

import dataclasses
import json
import sys
from pathlib import Path
from unittest import mock

import pytest

from prifedsync.cli import main
from prifedsync.config import ReportConfig
from prifedsync.files import REPORT
from prifedsync.report import saving

from .runs import rewritten


def ran(capsys, *words, status=0):
    """What a command prints on stdout and stderr."""
    with mock.patch.object(sys, "argv", ["prifedsync", *map(str, words)]), pytest.raises(SystemExit) as stopped:
        main()
    found = capsys.readouterr()
    assert (stopped.value.code or 0) == status, found.err
    return found


@pytest.fixture
def no_plotly(monkeypatch):
    """As where plotly is not installed."""

    def missing(name, package):
        raise ModuleNotFoundError("No module named 'plotly'", name="plotly")

    monkeypatch.setattr(saving, "import_module", missing)


def test_files_are_written_into_the_run_folder(plain, copied, capsys):
    folder = copied(plain)
    found = ran(capsys, "report", folder, "--set", "report.name=Sepsis warning", "--registry", folder / "entry.yaml")
    verdict, place = found.out.splitlines()
    assert verdict.startswith("review: Nobody has said how many records")
    assert place == f"report: {folder / REPORT}"
    assert json.loads((folder / saving.JSON).read_bytes())["title"] == "Sepsis warning"
    assert (folder / saving.CARD).read_text(encoding="utf-8").startswith("# Sepsis warning\n")
    assert (folder / "entry.yaml").read_text(encoding="utf-8").startswith('url_slug: "sepsis-warning"\n')
    assert ran(capsys, "report", folder).out  # a report in the folder is no part of the next one


def test_json_is_one_object_and_nothing_else(plain, tmp_path, capsys):
    found = ran(capsys, "report", plain, "--out", tmp_path / "to", "--json")
    assert json.loads(found.out) == json.loads((tmp_path / "to" / saving.JSON).read_bytes())
    assert not (plain / saving.JSON).exists()


def test_without_plotly_there_is_one_line_and_no_page(plain, copied, capsys, no_plotly):
    folder = copied(plain)
    (folder / REPORT).write_text("the page of an earlier report")
    found = ran(capsys, "report", folder)
    assert found.err == "prifedsync: no page was written: plotly is not installed\n"
    assert found.out.splitlines()[1] == f"report: {folder / saving.JSON}"
    assert (folder / saving.JSON).is_file()
    assert not (folder / REPORT).exists()


def test_what_only_a_page_cannot_show_leaves_no_other_file(sampled, copied, capsys, tmp_path):
    def wrong(data):
        data["by_metric"]["accuracy"]["released"]["pooled"]["mean_over_clients"] = "high"

    folder = rewritten(copied(sampled), wrong)
    found = ran(capsys, "report", folder, "--registry", tmp_path / "entry.yaml", status=2)
    assert "the record has a wrong part" in found.err
    assert found.err.count("\n") == 1
    assert not any((folder / name).exists() for name in (saving.JSON, saving.CARD, REPORT))
    assert not (tmp_path / "entry.yaml").exists()


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 99}'])
def test_a_bad_record_is_one_line_and_status_2(plain, copied, capsys, content):
    folder = copied(plain)
    (folder / "record.json").write_text(content)
    found = ran(capsys, "report", folder, status=2)
    assert found.err.startswith("prifedsync: ")
    assert found.err.count("\n") == 1
    assert found.out == ""
    assert not (folder / saving.JSON).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(note={"a": 1}),
        lambda data: data["by_metric"]["accuracy"]["released"]["own"].update(worst="high"),
        lambda data: data["clients"][0].update(name="\ud800"),
        lambda data: data["guarantee"]["mu"].update(upper=float("nan")),
    ],
)
def test_a_record_with_a_wrong_part_is_one_line_too(sampled, copied, capsys, change):
    """Also where the part is first met on the page or in the model card."""
    said = line(capsys, rewritten(copied(sampled), change))
    assert "restore the file from a copy" in said


@pytest.mark.parametrize(
    "content",
    ["{", "[5]", '{"columns": 5}', '{"columns": "abc"}', '{"shape": 3}', '{"shape": null}', '{"columns": ["\\ud800"]}'],
)
def test_damaged_rules_for_raw_rows_are_blamed_themselves(plain, copied, capsys, content):
    folder = copied(plain)
    (folder / "preprocessing.json").write_text(content)
    said = line(capsys, folder)
    assert "preprocessing.json cannot be read" in said
    assert "record.json" not in said


def test_columns_that_are_none_are_one_line_in_a_comparison(plain, sampled, copied, capsys):
    folder = rewritten(copied(plain), lambda data: data["config"]["data"].update(columns=None))
    assert "restore the file from a copy" in line(capsys, folder, sampled)


def test_a_name_moves_no_cursor(said, copied, capsys, no_plotly):
    def named(data):
        data["clients"][0] |= {"name": "\x1b[2J\nrelease: nothing", "noisy_queries": 3}

    first, *_ = ran(capsys, "report", rewritten(copied(said), named)).out.splitlines()
    assert first.isprintable()
    assert first.startswith("do not release: ")


def test_what_is_no_folder_is_refused(tmp_path, capsys):
    assert "is not a folder" in ran(capsys, "report", tmp_path / "nowhere", status=2).err
    assert "is not a run folder" in ran(capsys, "report", tmp_path, status=2).err


def line(capsys, *words):
    """The one line of a refusal."""
    found = ran(capsys, "report", *words, status=2)
    assert found.out == ""
    assert found.err.startswith("prifedsync: ")
    assert found.err.count("\n") == 1
    return found.err


def test_refusals_are_one_clear_line(plain, tmp_path, capsys):
    assert "Missing argument 'RUN_DIR...'" in line(capsys)
    for setting in ("rounds=5", "privacy.delta=0.1"):
        said = line(capsys, plain, "--set", setting)
        assert "only fields of [report] can be set: the run is over" in said
    assert "report.nonsense" in line(capsys, plain, "--set", "report.nonsense=1")
    said = line(capsys, plain, "--registry", tmp_path / "nowhere" / "entry.yaml", "--out", tmp_path / "to")
    assert "entry.yaml cannot be written: No such file or directory" in said
    assert not (tmp_path / "to").exists()
    (tmp_path / "file").write_text("")
    assert "file cannot be made: File exists" in line(capsys, plain, "--out", tmp_path / "file")


def test_an_unfinished_run_has_a_report_and_no_comparison(plain, copied, capsys):
    folder = copied(plain)
    (folder / "record.json").unlink()
    found = ran(capsys, "report", folder)
    assert found.out.startswith("do not release: The run is not finished")
    assert "is not finished" in line(capsys, plain, folder)


def test_a_sector_that_the_registry_does_not_know_is_named_once(plain, tmp_path, capsys, no_plotly):
    words = ("report", plain, "--set", "report.sector=Retail", "--out", tmp_path / "to")
    found = ran(capsys, *words, "--registry", tmp_path / "entry.yaml")
    assert found.err.splitlines()[0].startswith("prifedsync: the registry has no sector Retail")
    assert "Sector: Retail." in (tmp_path / "entry.yaml").read_text(encoding="utf-8")
    assert "sector" not in ran(capsys, *words).err


def test_files_of_a_comparison_go_into_the_current_folder(plain, sampled, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran(capsys, "report", plain, sampled)
    assert (tmp_path / saving.COMPARED).is_file()
    assert "RUN_DIR, for several the current folder" in " ".join(ran(capsys, "report", "--help").out.split())


def test_several_folders_are_compared(plain, sampled, tmp_path, capsys):
    found = ran(capsys, "report", plain, sampled, "--out", tmp_path / "to")
    assert "| run | μ ≤ | ε ≤ |" in found.out
    assert len(json.loads((tmp_path / "to" / saving.COMPARED).read_bytes())["rows"]) == 2
    printed = json.loads(ran(capsys, "report", plain, sampled, "--out", tmp_path / "to", "--json").out)
    assert printed == json.loads((tmp_path / "to" / saving.COMPARED).read_bytes())
    refused = ran(capsys, "report", plain, sampled, "--registry", tmp_path / "entry.yaml", status=2)
    assert "registry belongs to one run" in refused.err


def test_training_leaves_a_report(tmp_path, capsys):
    out = tmp_path / "run"
    words = ("train", "--out", out, "--set", "rounds=2", "--set", "compare=", "--quiet")
    found = ran(capsys, *words, "--set", "report.name=Digits")
    assert found.out == f"{out}\n"
    assert json.loads((out / saving.JSON).read_bytes())["title"] == "Digits"
    assert (out / saving.CARD).is_file()


def test_a_report_that_cannot_be_made_costs_a_line_and_no_result(tmp_path, capsys, monkeypatch):
    def full(*given):
        raise OSError("no space left")

    monkeypatch.setattr(saving, "write_file", full)
    found = ran(capsys, "train", "--out", tmp_path / "run", "--set", "rounds=2", "--set", "compare=", "--quiet")
    assert "no report was written: no space left" in found.err
    assert (tmp_path / "run" / "record.json").is_file()


def test_the_page_about_reports_names_every_field():
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    missing = [each.name for each in dataclasses.fields(ReportConfig) if f"`{each.name}`" not in page]
    assert missing == []
