"""What commands print where: warnings for people, and for programs one value on standard output and nothing else."""

import json
import sys
from types import SimpleNamespace

import pytest

from prifedsync import audit, bench, cli

from .terminal.test_tables import BENCH

ONE = ["--records", "600", "--batch", "16", "--local-steps", "2", "--rounds", "3"]
QUICK = ["--set", "rounds=1", "--set", "compare=[]"]
DELTA = "is not below 1/records"


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Exit status, output and errors of a command."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["prifedsync", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        seen = capsys.readouterr()
        return stopped.value.code or 0, seen.out, seen.err

    return call


@pytest.fixture
def sizes(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("client,records\nnorth,600\nsouth,400\nwest,500\neast,300\n", encoding="utf-8")
    return path


# ---------------------------------------------------------------------- warnings


def test_account_warns(command):
    status, out, _ = command("account", *ONE, "--noise-multiplier", "2", "--delta", "0.01")
    assert status == 0
    assert f"warning: delta = 0.01 {DELTA}" in out
    assert "warning" not in command("account", *ONE, "--noise-multiplier", "2")[1]


def test_plan_warns_about_its_largest_client(command, sizes):
    words = ["--batch", "16", "--rounds", "3", "--target-epsilon", "1", "--delta"]
    for who in (["--records", "600"], ["--sizes", sizes]):
        out = command("plan", *who, *words, "0.002")[1]
        assert f"warning: delta = 0.002 {DELTA} = 0.0017" in out
        assert "warning" not in command("plan", *who, *words, "1e-5")[1]
        said = json.loads(command("plan", *who, *words, "0.002", "--json")[1])
        assert DELTA in said["warnings"][0]


def test_plan_warns_of_rare_events(command):
    out = command("plan", "--records", "4000", "--batch", "16", "--rounds", "1", "--target-advantage", "0.3")[1]
    assert "warning: the only target is advantage = 0.3" in out


def test_curve_warns_beside_the_name_of_its_file(command, tmp_path):
    words = ["--batch", "16", "--local-steps", "1", "--rounds", "1", "--noise-multiplier", "2", "--out", "a.png"]
    status, out, err = command("curve", "--records", "200000", *words)
    assert (status, out) == (0, "a.png\n")
    assert f"warning: delta = 1e-05 {DELTA}" in err
    assert command("curve", "--records", "600", *words) == (0, "a.png\n", "")


def test_train_warns_and_says_what_its_record_says(command, tmp_path):
    status, out, _ = command("train", *QUICK, "--set", "privacy.delta=0.1", "--out", "run")
    assert status == 0
    assert f"warning: delta = 0.1 {DELTA}" in out
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["warnings"]
    for said in (*(f"warning: {each}" for each in record["warnings"]), record["sentence"]):
        assert said in out


# ---------------------------------------------------------------------- for programs


def test_json_is_all_of_standard_output(command, sizes):
    planned = ["--batch", "16", "--rounds", "3", "--target-mu", "1"]
    for words in (
        ["account", *ONE, "--noise-multiplier", "2", "--delta", "0.1"],
        ["plan", "--records", "600", *planned],
        ["plan", "--sizes", sizes, *planned],
        ["rules"],
        ["partition"],
    ):
        status, out, err = command(*words, "--json")
        assert status == 0
        assert isinstance(json.loads(out), dict)
        assert len(out.splitlines()) == 1
        assert err == ""


def test_json_of_an_audit_and_of_a_bench(command, monkeypatch):
    failed = {"name": "count", "measured": "1", "allowed": "2", "passed": False, "explanation": "why"}
    found = SimpleNamespace(passed=False, as_json=lambda: {"passed": False, "checks": [failed]})
    monkeypatch.setattr(audit, "audit_config", lambda config: found)
    status, out, err = command("audit", "step", "--json")
    assert (status, json.loads(out), err) == (1, found.as_json(), "")
    status, out, _ = command("audit", "step")
    assert status == 1
    assert "FAILED" in out
    monkeypatch.setattr(bench, "measure", lambda *given, **named: BENCH)
    status, out, err = command("bench", "--json")
    assert (status, json.loads(out), err) == (0, BENCH, "")
    assert "ours, private" in command("bench")[1]


def test_quiet_and_json_of_a_run(command, tmp_path):
    assert command("train", *QUICK, "--quiet", "--out", "quiet") == (0, "quiet\n", "")
    assert command("train", "--resume", "quiet", "--quiet") == (0, "quiet\n", "")
    status, out, err = command("train", *QUICK, "--json", "--out", "json")
    assert (status, err) == (0, "")
    assert json.loads(out)["folder"] == "json"
    assert len(out.splitlines()) == 1
    status, out, err = command("train", "--resume", "json", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["folder"] == "json"
