"""`prifedsync train`: the main job from a shell, for everybody's data, and whatever happens to the process."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

COMMAND = [sys.executable, "-m", "prifedsync.cli"]
QUICK = ["--set", "rounds=2", "--set", "compare=[]", "--quiet"]


def call(*words, cwd=None):
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=180, cwd=cwd, check=False)


def refused(*words, cwd=None):
    """The one line with which a command refuses bad input."""
    done = call(*words, cwd=cwd)
    assert done.returncode == 2, done.stderr + done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("prifedsync: ")
    return line


def test_the_default_trains_and_says_what_it_cost(tmp_path):
    done = call("train", "--out", tmp_path / "run", "--set", "rounds=6")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    for expected in ("personal", "released", "alone", "non-private", "worst", "ε ≤", "μ ≤", "guesses which of two values",
                     "whoever knows the seed can subtract the noise", "run folder"):  # fmt: skip
        assert expected in words
    assert "round 6 of 6" in done.stderr  # plain lines where there is no terminal
    assert "left" in done.stderr
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["schema_version"] == 5
    assert record["guarantee"]["mu"]["upper"] <= 1


def test_json_is_one_object_and_nothing_else(tmp_path):
    done = call("train", "--json", "--out", tmp_path / "run", *QUICK[:4])
    said = json.loads(done.stdout)
    assert said["folder"] == str(tmp_path / "run")
    assert said["guarantee"]["epsilon"]["upper"] > 0
    assert done.stderr == ""


def test_show_config_documents_every_field():
    shown = call("train", "--show-config").stdout
    config = tomllib.loads(shown)
    assert {"data", "model", "local", "rule", "privacy", "performance"} <= set(config)
    assert shown.count("\n# ") > 40
    again = call("train", "digits-paper", "--show-config", "--set", "local.batch=7").stdout
    assert tomllib.loads(again)["local"]["batch"] == 7


def test_without_a_name_the_run_folder_is_new_each_time(tmp_path):
    folders = {call("train", *QUICK, cwd=tmp_path).stdout.strip() for _ in range(2)}
    assert len(folders) == 2
    for folder in folders:
        assert (tmp_path / folder / "record.json").is_file()


# ---------------------------------------------------------------------- the process ends


SLOW = ["train", "digits-paper", "--quiet", "--set", "rounds=60", "--set", "local.local_steps=4", "--set", "compare=[]"]
SLOW += ["--set", "participation=0.5"]
EVERY_ROUND = ["--set", "performance.checkpoint_seconds=0"]


def started(*words):
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rounds_written(folder):
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def repeatable(folder):
    record = json.loads((folder / "record.json").read_text())
    return {key: value for key, value in record.items() if key not in ("timings", "host")}


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("never_killed") / "run"
    assert call(*SLOW, *EVERY_ROUND, "--out", folder).returncode == 0
    return folder


def test_killed_at_random_moments_it_resumes_to_the_same_record(never_killed, tmp_path):
    folder, chance = tmp_path / "run", random.Random(os.getpid())
    process = started(*SLOW, *EVERY_ROUND, "--out", folder)
    kills = 0
    for _ in range(4):
        beyond = rounds_written(folder) + chance.randint(1, 18)
        while process.poll() is None and rounds_written(folder) < beyond:
            time.sleep(chance.random() * 0.01)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (folder / "record.json").exists() and not (folder / "checkpoint/manifest.json").exists():
            break
        process = started("train", "--resume", folder, "--quiet")
    process.communicate(timeout=180)
    assert kills >= 2
    assert repeatable(folder) == repeatable(never_killed)
    assert (folder / "rounds.jsonl").read_bytes() == (never_killed / "rounds.jsonl").read_bytes()
    model = "models/global.safetensors"
    assert (folder / model).read_bytes() == (never_killed / model).read_bytes()


def test_ctrl_c_saves_and_says_how_to_resume(never_killed, tmp_path):
    folder = tmp_path / "run"
    process = started(*SLOW, "--set", "performance.checkpoint_seconds=1000", "--out", folder)
    while process.poll() is None and rounds_written(folder) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"resume with --resume {folder}" in " ".join(said.split())
    assert call("train", "--resume", folder, "--quiet").returncode == 0
    expected, seen = repeatable(never_killed), repeatable(folder)
    expected["config"]["performance"].pop("checkpoint_seconds")
    seen["config"]["performance"].pop("checkpoint_seconds")
    assert seen == expected


# ---------------------------------------------------------------------- your own tables


def write_table(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def patients(count, seed):
    """Age, blood pressure, sex and whether somebody is ill: more often if old; one blood pressure is missing."""
    draw = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        age = int(draw.integers(20, 90))
        ill = "yes" if draw.random() < (0.9 if age > 55 else 0.1) else "no"
        pressure = "" if i == 3 else int(draw.integers(90, 180))
        rows.append({"age": age, "pressure": pressure, "sex": draw.choice(["f", "m"]), "ill": ill})
    return rows


CSV = """
rounds = 15
metrics = ["auc"]
[data]
source = "csv"
path = "{path}"
label = "ill"
task = "binary"
label_values = ["no", "yes"]
client_column = "{column}"
ranges = {{ age = [0, 100], pressure = [50, 250] }}
missing = {{ pressure = 120 }}
categories = {{ sex = ["f", "m"] }}
[local]
learning_rate = 4.0
batch = 20
local_steps = 2
[privacy]
noise_multiplier = 2.0
"""


@pytest.fixture(params=["a file a client", "a client column"])
def tables(request, tmp_path):
    hospitals = {"north": patients(120, 1), "south": patients(90, 2), "west": patients(60, 3)}
    if request.param == "a file a client":
        (tmp_path / "tables").mkdir()
        for name, rows in hospitals.items():
            write_table(tmp_path / "tables" / f"{name}.csv", rows)
        text = CSV.format(path="tables", column="")
    else:
        together = [{"hospital": name, **row} for name, rows in hospitals.items() for row in rows]
        random.Random(0).shuffle(together)
        write_table(tmp_path / "all.csv", together)
        text = CSV.format(path="all.csv", column="hospital")
    (tmp_path / "job.toml").write_text(text)
    return tmp_path


def test_csv_files_are_trained_end_to_end_by_one_command(tables):
    done = call("train", "job.toml", "--out", "run", cwd=tables)
    assert done.returncode == 0, done.stderr
    record = json.loads((tables / "run/record.json").read_text())
    sizes = {client["name"]: client["records"] for client in record["clients"]}
    assert sizes == {"north": 96, "south": 72, "west": 48}
    assert record["by_metric"]["auc"]["released"]["own"]["mean_over_clients"] > 0.8  # area under the curve
    assert record["config"]["privacy"]["randomness"] == "system"
    assert set(record["by_metric"]["auc"]) == {"personal", "released"}  # nothing is compared on private data unless asked
    epsilons = [record["shared"]["planned"][client["planned"]]["epsilon"]["upper"] for client in record["clients"]]
    assert epsilons == sorted(epsilons)  # fewer records, larger rate, larger ε


# ---------------------------------------------------------------------- bad input, one line each


def changed(text, old, new):
    assert old in text
    return text.replace(old, new)


GOOD = CSV.format(path="tables", column="")
BAD_CONFIGS = {
    "unknown key": ("label = ", "lable = ", "data.label"),
    "misspelt choice": ('task = "binary"', 'task = "binery"', "did you mean binary?"),
    "no rule for a missing value": ("missing = { pressure = 120 }", "", "pressure"),
    "no rule for text": ('categories = { sex = ["f", "m"] }', "", "sex"),
    "a category nobody listed": ('["f", "m"]', '["f", "x"]', "sex"),
    "a label nobody listed": ('["no", "yes"]', '["no", "maybe"]', "yes"),
    "no such label column": ('label = "ill"', 'label = "sick"', "sick"),
    "no such folder": ('path = "tables"', 'path = "tabels"', "tabels"),
    "negative noise": ("noise_multiplier = 2.0", "noise_multiplier = -1", "privacy.noise_multiplier"),
    "too little noise": ("noise_multiplier = 2.0", "noise_multiplier = 0.01", "privacy.noise_multiplier"),
    "noise and target": (
        "noise_multiplier = 2.0",
        "noise_multiplier = 2.0\ntarget.mu = 1",
        "give exactly one of noise_multiplier",
    ),
    "batch larger than a client": ("batch = 20", "batch = 50", "client west: batch = 50"),
    "batch of nothing": ("batch = 20", "batch = 0", "local.batch"),
    "participation of nobody": ("rounds = 15", "rounds = 15\nparticipation = 0", "participation"),
    "no rounds": ("rounds = 15", "rounds = 0", "rounds"),
    "a range upside down": ("age = [0, 100]", "age = [100, 0]", "data.ranges.age"),
    "a metric of other targets": ('metrics = ["auc"]', 'metrics = ["rmse"]', "metrics"),
    "an unknown client": ("[privacy]", "[clients.east]\nbatch = 2\n[privacy]", "did you mean west?"),
    "not TOML": ("rounds = 15", "rounds 15", "is not TOML"),
    "fixed with add-remove": ("batch = 20", 'batch = 20\nsampling = "fixed"', "poisson"),
    "all held out": ('source = "csv"', 'source = "csv"\ntest_fraction = 1.0', "data.test_fraction"),
    "a model that is not there": ("[local]", '[model]\nname = "nowhere:net"\n[local]', "nowhere"),
    "images wanted": ("[local]", '[model]\nname = "mnist-cnn"\n[local]', "(1, 28, 28)"),
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    (folder / "tables").mkdir()
    for name, count in (("north", 120), ("south", 90), ("west", 60)):
        write_table(folder / "tables" / f"{name}.csv", patients(count, count))
    return folder


def refused_here(words, folder, monkeypatch, capsys):
    """As `refused`, in this process: starting one for each takes seconds."""
    from prifedsync.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["prifedsync", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert stopped.value.code == 2
    assert line.startswith("prifedsync: ")
    return line


@pytest.mark.parametrize(("old", "new", "said"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_config_is_refused_in_one_line(old, new, said, hospitals, tmp_path, monkeypatch, capsys):
    text = changed(GOOD, old, new)
    if "fixed" in new:
        text = changed(text, "noise_multiplier = 2.0", 'noise_multiplier = 2.0\nneighbours = "add-remove"')
    job = tmp_path / "job.toml"
    job.write_text(text.replace('path = "tables"', f'path = "{hospitals}/tables"'))
    line = refused_here(["train", job, "--quiet", "--out", tmp_path / "run"], hospitals, monkeypatch, capsys)
    assert said in line
    assert not (tmp_path / "run").exists()  # refused before anything was begun


BAD_ROWS = {
    "not a number": ("age", "old", "age"),
    "not finite": ("age", "nan", "age"),
    "infinite": ("age", "inf", "age"),
    "a label nobody listed": ("ill", "perhaps", "perhaps"),
    "no label": ("ill", "", "ill"),
}


@pytest.mark.parametrize(("column", "value", "said"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_refused_with_the_clients_name(column, value, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "tables").mkdir()
    rows = patients(60, 1)
    write_table(tmp_path / "tables/good.csv", patients(60, 2))
    rows[7][column] = value
    write_table(tmp_path / "tables/bad.csv", rows)
    (tmp_path / "job.toml").write_text(GOOD)
    line = refused_here(["train", "job.toml", "--quiet", "--out", "run"], tmp_path, monkeypatch, capsys)
    assert said in line
    assert "bad" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--set", "privacy.clip_nrm=1"], "clip_norm"),
        (["train", "digist"], "did you mean digits?"),
        (["train", "--set", "rounds"], "key=value"),
        (["train", "--set", "performance.device=tpu"], "performance.device"),
        (["train", "--device", "tpu"], "device"),
        (["train", "--resume", "nowhere"], "is not a run folder"),
        (["train", "--resume", "nowhere", "--set", "rounds=2"], "give --resume alone"),
        (["train", "missing.toml"], "missing.toml"),
        (["train", "--data", "somewhere"], "data.path"),
    ],
)
def test_bad_options_are_refused_in_one_line(words, said, tmp_path, monkeypatch, capsys):
    assert said in refused_here(words, tmp_path, monkeypatch, capsys)


def test_from_a_shell_the_refusal_is_one_line_and_status_2():
    assert "clip_norm" in refused("train", "--set", "privacy.clip_nrm=1")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in refused("train", *QUICK, "--out", tmp_path / "file" / "run")


def test_functions_of_your_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def records(seed):\n"
        "    draw = torch.Generator().manual_seed(seed)\n"
        "    x = torch.randint(0, 20, (3, 40, 6), generator=draw)\n"
        "    return {f'phone {i}': (x[i], (x[i] > 12).any(1).long()) for i in range(3)}\n"
        "class Words(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.out = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return self.out(self.table(x).mean(1))\n"
        "def model():\n"
        "    return Words()\n"
    )
    words = ["data.source=mine:records", "data.classes=2", "model.name=mine:model", "model.features=none"]
    done = call("train", *(w for word in words for w in ("--set", word)), *QUICK, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert [client["name"] for client in record["clients"]] == ["phone 0", "phone 1", "phone 2"]
    assert record["gradients"] == "bookkeeping"
    assert {Path(p).name for p in os.listdir(tmp_path / "run/models/personal")} == {
        f"phone%20{i}.safetensors" for i in range(3)
    }
