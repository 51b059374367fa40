"""Attacks on what people read: exchange the ends of a bracket, planned and taken, or the two ways to take part.

Real brackets are narrow, and an exchange hides behind rounding. Here guarantees have ends far apart, and different ones for
every question, so that each number that is stored or printed can have only one source.
"""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import prifedsync
from prifedsync import cli, run
from prifedsync.accounting import PrivacyPlan
from prifedsync.accounting.statement import CURVE_LEVELS
from prifedsync.record import RunRecord
from prifedsync.terminal import print_record

from ..accounting.wide import HONEST, WORST_CASE, as_json, guarantee

ROUNDS = 6
DELTA = 0.3  # so large that every plan is warned of
LARGE_DELTA = "is not below 1/records"
PLAN = ("--records", "50", "--batch", "5", "--noise-multiplier", "2", "--local-steps", "2", "--rounds", "6")


@pytest.fixture(autouse=True)
def wide_brackets(monkeypatch):
    monkeypatch.setattr(PrivacyPlan, "guarantee", guarantee)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def folder(tmp_path):
    """The folder of a run of two clients of different size, who take part in about half of the rounds."""
    draw = torch.Generator().manual_seed(0)
    clients = {
        name: (torch.randn(size, 3, generator=draw), torch.randint(0, 2, (size,), generator=draw))
        for name, size in {"a": 30, "b": 40}.items()
    }
    config = {
        "rounds": ROUNDS,
        "participation": 0.5,
        "compare": [],
        "data": {"source": run.GIVEN, "classes": 2, "test_fraction": 0},
        "local": {"batch": 5},
        "privacy": {"noise_multiplier": 2.0, "delta": DELTA, "randomness": "seeded"},
    }
    prifedsync.train(config, clients=clients, out=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def stored(folder):
    return json.loads((folder / "record.json").read_bytes())


def numbers_in(stored):
    return {name: stored[name] for name in ("epsilon", "mu", "advantage")}


def command(*words):
    done = CliRunner().invoke(cli.app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


# ---------------------------------------------------------------------- record.json


def test_the_guarantee_in_the_record(stored):
    said = stored["guarantee"]
    assert numbers_in(said) == as_json(HONEST)
    assert said["worst_case_participation"] == as_json(WORST_CASE)
    assert said["curve"] == [[alpha, HONEST(alpha)] for alpha in CURVE_LEVELS]
    assert "correctly at most 62.5% of the time" in stored["sentence"]
    assert "true positive rate is at most 25.8%" in stored["sentence"]
    assert stored["sentence"] == said["sentence"]


def test_planned_and_taken_of_every_client_in_the_record(stored):
    assert {client["rounds_taken"] for client in stored["clients"]} - {0, ROUNDS}  # else taken might be planned
    for client in stored["clients"]:
        taken = guarantee(None, taken=client["rounds_taken"])
        planned = stored["shared"]["planned"][client["planned"]]
        assert numbers_in(planned) == as_json(HONEST)
        assert planned["worst_case_participation"] == as_json(WORST_CASE)
        assert stored["shared"]["taken"][client["taken"]] == as_json(taken)


def test_warnings_of_the_statement_are_in_the_record(stored):
    """Each client has a warning of its own, and the record has both."""
    own = [stored["shared"]["planned"][client["planned"]]["warnings"] for client in stored["clients"]]
    assert [[LARGE_DELTA in text for text in texts] for texts in own] == [[True], [True]]
    assert stored["guarantee"]["warnings"] == [*own[0], *own[1]]
    assert set(stored["guarantee"]["warnings"]) < set(stored["warnings"])
    assert "1/records = 0.033" in own[0][0]
    assert "1/records = 0.025" in own[1][0]


def test_the_last_lines_of_a_run(folder, capsys):
    print_record(RunRecord.read(folder / "record.json"), None)
    words = " ".join(capsys.readouterr().out.split())
    assert f"ε ≤ 4.250 at δ = {DELTA:g}, μ ≤ 0.7500 for" in words
    assert "(ε ≤ 10.63 if others choose who takes part)" in words  # 10.625, rounded up
    assert "correctly at most 62.5% of the time" in words
    assert words.count(LARGE_DELTA) == 2


# ---------------------------------------------------------------------- before a run


def test_account_for_programs():
    said = json.loads(command("account", *PLAN, "--participation", "0.5", "--delta", str(DELTA), "--json"))
    assert numbers_in(said) == as_json(HONEST)
    assert said["worst_case_participation"] == as_json(WORST_CASE)
    assert said["curve"] == [[alpha, HONEST(alpha)] for alpha in CURVE_LEVELS]
    assert len(said["warnings"]) == 1


def test_account_for_people():
    said = command("account", *PLAN, "--participation", "0.5", "--delta", str(DELTA))
    rows = [re.findall(r"[≤≥] [\d.]+%?", line) for line in said.splitlines()]
    assert [row for row in rows if len(row) == 2] == [
        ["≤ 4.2500", "≤ 10.625"],  # ε
        ["≥ 2.5000", "≥ 6.2500"],
        ["≤ 0.7500", "≤ 1.875"],  # μ
        ["≤ 25.0%", "≤ 62.5%"],  # advantage
        ["≤ 25.1%", "≤ 62.6%"],  # true positive rates, 1 − (1 − α) · (1 − advantage)
        ["≤ 25.8%", "≤ 62.9%"],
    ]
    assert LARGE_DELTA in " ".join(said.split())


def test_plan_for_programs_and_people():
    asked = ("plan", *PLAN, "--target-epsilon", "5")
    assert numbers_in(json.loads(command(*asked, "--json"))) == as_json(HONEST)
    (row,) = [line.split() for line in command(*asked).splitlines() if "4.250" in line]
    assert row[-2:] == ["4.250", "0.7500"]
