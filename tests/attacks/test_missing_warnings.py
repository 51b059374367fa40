"""Attacks through what a run gives away or allows without a word: each must be warned of."""

import json
import subprocess
import sys

import torch

import prifedsync
from prifedsync.config import load
from prifedsync.record import SCORES_LEAK
from prifedsync.terminal import print_record

RARE = "says nothing about rare events"
TIMINGS = "timings are measured without noise"
QUICK = {"rounds": 1, "compare": []}


def own_clients(sizes):
    draw = torch.Generator().manual_seed(0)
    clients = {}
    for name, size in sizes.items():
        x = torch.randn(size, 3, generator=draw)
        y = torch.randint(0, 2, (size,), generator=draw)
        clients[name] = (x, y)
    return clients


def trained(privacy, test_fraction=0.0, **sizes):
    config = QUICK | {"data": {"classes": 2, "test_fraction": test_fraction}, "local": {"batch": 16}, "privacy": privacy}
    return prifedsync.train(config, clients=own_clients(sizes)).record


def plan(*words):
    command = [sys.executable, "-m", "prifedsync.cli", "plan", "--batch", "16", "--rounds", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rare(warnings):
    return [warning for warning in warnings if RARE in warning]


# ---------------------------------------------------------------------- a target on the advantage


def test_a_target_on_the_advantage_that_gives_records_away(capsys):
    """Ask for a small advantage only: a large client then gets next to no noise, and whichever record is drawn is known."""
    record = trained({"target": {"advantage": 0.3}}, small=20, middle=30, large=4000)
    by_name = {client.name: client.planned["epsilon"]["upper"] for client in record.clients}
    assert by_name["large"] > 100 > 10 > by_name["small"]
    (warning,) = rare(record.warnings)
    assert "client large" in warning
    assert float(warning.split("ε ≤ ")[1].split()[0]) >= by_name["large"]
    print_record(record, None)
    assert RARE in " ".join(capsys.readouterr().out.split())
    assert not rare(trained({"target": {"advantage": 0.3}}, small=20).warnings)  # ε is small
    assert not rare(trained({"target": {"epsilon": 12.0}}, small=20).warnings)  # ε is what was asked for


def test_plan_warns_of_it_before_there_is_a_run():
    """The same from `plan`, which is asked before a run."""
    asked = ("--records", "4000", "--target-advantage", "0.3")
    said = json.loads(plan(*asked, "--json"))
    assert said["epsilon"]["upper"] > 100
    assert len(rare(said["warnings"])) == 1
    assert RARE in " ".join(plan(*asked).split())


def test_plan_names_the_worst_of_many_clients(tmp_path):
    """The same for one of many clients, which a table would hide."""
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("client,records\nnorth,20\nsouth,4000\nwest,30\n", encoding="utf-8")
    asked = ("--sizes", str(sizes), "--target-advantage", "0.3")
    (warning,) = rare(json.loads(plan(*asked, "--json"))["warnings"])
    assert "client south" in warning
    assert "client south has ε" in " ".join(plan(*asked).split())


# ---------------------------------------------------------------------- what is measured without noise


def test_timings_of_a_private_run():
    """Read the timings in a record: a large batch takes longer than a small one, and no noise hides it."""
    record = trained({"noise_multiplier": 2.0, "randomness": "system"}, a=40)
    assert record.timings
    assert any(TIMINGS in warning for warning in record.warnings)
    public = prifedsync.train(load("digits", ["rounds=1", "compare=[]"])).record  # has nothing to hide
    assert not any(TIMINGS in warning for warning in public.warnings)


def test_scores_of_a_seeded_run_on_records_of_ones_own():
    """Read the scores of a simulation on private records: they are computed without noise whatever the draws are."""
    seeded = {"noise_multiplier": 2.0, "randomness": "seeded"}
    assert SCORES_LEAK in trained(seeded, test_fraction=0.2, a=40).warnings
    assert SCORES_LEAK not in trained(seeded, test_fraction=0.0, a=40).warnings  # there are none
    public = prifedsync.train(load("digits", ["rounds=1", "compare=[]"])).record  # has nothing to hide
    assert SCORES_LEAK not in public.warnings


def test_scores_of_a_seeded_run_on_a_file_of_ones_own(tmp_path):
    """The same for records from a file."""
    path = tmp_path / "records.csv"
    rows = [f"{i % 7},{i % 2}" for i in range(60)]
    path.write_text("\n".join(["x,label", *rows]), encoding="utf-8")
    own = ["data.source=csv", f"data.path={path}", "data.classes=2", 'data.ranges."*"=[0, 7]', "data.partition=iid"]
    config = load(
        "breast-cancer", [*own, "data.clients=2", "local.batch=4", "rounds=1", "compare=[]", "privacy.randomness=seeded"]
    )
    warnings = prifedsync.train(config).record.warnings
    assert SCORES_LEAK in warnings
    assert any(TIMINGS in warning for warning in warnings)
