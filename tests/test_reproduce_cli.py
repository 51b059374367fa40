"""`prifedsync reproduce` as a user runs it, on small data that the tests write."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .experiments.settings import write_mnist

LITTLE = ("--set", "rounds=2", "--set", "data.clients=4", "--set", "local.local_steps=3")
QUICK = (*LITTLE, "--set", "model.name=softmax", "--device", "cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("data"))


def reproduce(*words, data=None, **options):
    given = os.environ | ({"PRIFEDSYNC_DATA": str(data)} if data else {})
    command = [sys.executable, "-m", "prifedsync.cli", "reproduce", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=given, timeout=300, **options)


def test_the_first_row_of_table_1(data, tmp_path):
    """The paper's own net and split; a table of all nine rows, of which one was run."""
    words = ("table1", "--rows", "1", "--device", "cpu", *LITTLE, "--out", tmp_path)
    done = reproduce(*words, data=data)
    assert done.returncode == 0, done.stderr
    assert "Table 1" in done.stdout
    table = json.loads((tmp_path / "table1.json").read_text())
    assert len(table["rows"]) == 9
    first, *others = table["rows"]
    (run,) = first["runs"]
    assert (run["seed"], run["reached"]) == (0, run["accuracy"] >= 90)
    assert 0 <= run["global"] <= 100
    assert 0 < run["nonprivate"] <= 100
    assert (first["planned"]["rounds"], first["paper"]["rounds"]) == (2, 93)
    assert first["planned"]["fixed"]["epsilon"]["upper"] > first["planned"]["poisson"]["epsilon"]["upper"] > 0
    assert all(row["runs"] == [] for row in others)
    assert table["overrides"] == ["rounds=2", "data.clients=4", "local.local_steps=3"]
    assert "--set local.local_steps=3" in (tmp_path / "table1.md").read_text()
    again = reproduce(*words, data=data)
    assert again.returncode == 0
    assert "row 1" not in again.stderr  # nothing was run


def test_json_alone_on_standard_output(data, tmp_path):
    done = reproduce("table2", "--rows", "2", *QUICK, "--json", "--out", tmp_path, data=data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [len(row["runs"]) for row in found["table2"]["rows"]] == [0, 1, 0, 0, 0, 0]
    assert found["table2"]["sentence"] is None
    assert found["table2"]["rows"][1]["runs"][0]["nonprivate"] is None  # the paper prints none there


def test_cifar_and_two_seeds(data, tmp_path):
    small = ("--set", "data.records_per_client=30", "--set", "data.test_records=20", "--data", data)
    done = reproduce("table3", "--rows", "3", "--seeds", "0,1", *QUICK, *small, "--json", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["table3"]["rows"][2]
    assert [run["seed"] for run in row["runs"]] == [0, 1]
    assert row["copies"] > 1
    alone = row["planned_counting_one_holder"]["fixed"]["epsilon"]["upper"]
    assert row["planned"]["fixed"]["epsilon"]["upper"] > alone
    assert f"up to {row['copies']} clients" in (tmp_path / "table3.md").read_text()


def test_figures_of_what_is_finished(data, tmp_path):
    """Theory and the split need no training; the others are drawn once their rows are there."""
    small = ("--set", "data.records_per_client=30", "--set", "data.clients=4")
    done = reproduce("figures", "--finished-only", *small, "--data", data, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    drawn = json.loads(done.stdout)["figures"]
    assert [path.rpartition("/")[2] for path in drawn] == ["subsampling.png", "theorem-1.png", "cifar-labels.png"]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in drawn)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1", "--rows", "12"], "rows = 12"),
        (["table1", "--rows", "one"], "whole numbers"),
        (["figures", "--rows", "1"], "cannot go with figures"),
        (["table1", "--seeds", "-1"], "seed"),
        (["table1", "--set", "seed=3"], "--seeds"),
        (["table1", "--set", "rounds=0"], "rounds"),
        (["table9"], "table9"),
    ],
)
def test_bad_input_is_one_line(words, said, tmp_path):
    done = reproduce(*words, "--out", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_without_data_it_says_which_files_go_where(tmp_path):
    done = reproduce("table1", "--rows", "1", "--data", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "mnist.npz" in done.stderr


def test_an_interrupted_row_goes_on(data, tmp_path):
    """Ctrl-C ends it after a round with 130 and says how to go on; the same command finishes the row."""
    words = ["table1", "--rows", "1", *QUICK, "--set", "rounds=400", "--set", "data.clients=2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "prifedsync.cli", "reproduce", *words, "--data", str(data)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if "round " in line:
                running.send_signal(signal.SIGINT)
                break
        rest = running.stderr.read()
        running.wait(timeout=120)
    assert running.returncode == 130, rest
    assert "the same command goes on" in rest
    (folder,) = (tmp_path / "unfinished").iterdir()
    before = len((folder / "rounds.jsonl").read_text().splitlines())
    assert 0 < before < 400
    done = reproduce(*words, data=data)
    assert done.returncode == 0, done.stderr
    assert re.search(r"round (\d+) of 400", done.stderr)[1] == str(before + 1)
    (kept,) = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir() if "private" in path.name]
    assert len(kept["personal"]) == 400 or kept["personal"][-1] >= 0.9
