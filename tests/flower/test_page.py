"""docs/deploy.md, followed literally: its commands in their order, in one shell, in an empty folder, at another port."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from prifedsync.deploy.processes import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
ROUNDS = 2
SECONDS = 900  # a busy machine takes several times as long as an idle one
LAST = 4000  # characters of each text that are shown where something failed


def commands():
    lines = [line for body in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL) for line in body.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def programs(folder):
    """`python` and `prifedsync`, as an installation would have them."""
    for name, words in {"python": "", "prifedsync": "-m prifedsync.cli "}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
        (folder / name).chmod(0o755)


def follow(folder, script, environment):
    """Run the script; everything that it started ends with it, also where it takes too long."""
    with (folder / "said").open("wb") as said:  # a file: whoever is left over must not keep a pipe open
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)
            status = "it took too long"
        finally:
            end_group(shell.pid)
            shell.wait()
    return status, (folder / "said").read_text(errors="replace")


def end_group(group):
    """End whoever is left of the shell's group: first in an orderly way, since a SuperNode is in a group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        time.sleep(1.0)


def told(folder, said):
    """What was said, and the ends of all logs."""
    logs = sorted({*folder.rglob("*.log"), *folder.glob("served.txt")})
    ends = [f"--- {log}\n{log.read_text(errors='replace')[-LAST:]}" for log in logs]
    return "\n".join([said[-LAST:], *ends])


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder after all commands, and what they printed, by command."""
    folder = tmp_path_factory.mktemp("page")
    place = folder / "bin"
    place.mkdir()
    programs(place)
    port = str(free_port())
    script = ["set -eu", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for number, command in enumerate(commands()):
        script += [f"echo '@@{number}'", command.replace("9092", port)]
    environment = os.environ | {"PATH": f"{place}:{os.environ['PATH']}", "COLUMNS": "120"}
    status, said = follow(folder, script, environment)
    assert status == 0, f"{status}\n{told(folder, said)}"
    parts = dict(re.findall(r"^@@(\d+)\n(.*?)(?=^@@|\Z)", said, flags=re.DOTALL | re.MULTILINE))
    return folder, {command: parts[str(number)] for number, command in enumerate(commands())}


def printed(followed, beginning):
    """What the last command has printed that begins so; loops are left out of its words."""
    return [text for command, text in followed[1].items() if re.sub(r"^for .*?; do ", "", command).startswith(beginning)][
        -1
    ]


def test_all_of_it_is_followed():
    said = "\n".join(commands())
    for command in ("init", "local", "key", "serve", "join", "status"):
        assert f"prifedsync deploy {command}" in said
    for command in (
        "owner key",
        "owner check",
        "owner serve",
        "owner status",
        "ledger new",
        "ledger end",
        "predict",
        "evaluate",
    ):
        assert f"prifedsync {command}" in said


def test_the_rehearsal_and_the_run_are_whole(followed):
    for place in (followed[0] / "rehearsal", followed[0] / "server/run"):
        record = json.loads((place / "record.json").read_text())
        assert record["deployment"]["answers"] == {
            name: {"sent": ROUNDS, "stayed": 0, "absent": 0, "refused": 0, "lost": 0} for name in HOSPITALS
        }, told(*followed)
        assert len((place / "rounds.jsonl").read_text().splitlines()) == ROUNDS


def test_the_rehearsal_spends_nothing_of_the_project(followed):
    assert not list((followed[0] / "project").rglob("ledger.db"))


def test_keys_were_replaced(followed):
    for name in HOSPITALS:
        site = followed[0] / name / "site"
        assert (followed[0] / "server/nodes" / f"{name}.pub").read_text() == (site / "node.key.pub").read_text()
        assert (site / "node.key.pub").read_text() != (followed[0] / f"project/server/nodes/{name}.pub").read_text()
    keys = [
        (followed[0] / place / "owner/policy.toml").read_text() for place in ("hospital-b", "project/clients/hospital-b")
    ]
    new, old = (tomllib.loads(text)["masks"]["peers"] for text in keys)
    assert new["hospital-a"] != old["hospital-a"]
    assert new["hospital-c"] == old["hospital-c"]


def test_the_check_warns_where_the_page_says_so(followed):
    table = printed(followed, "prifedsync owner check")
    status = dict(re.findall(r"^(\w+(?: \w+)?) +(ok|warn|wrong) ", table, flags=re.MULTILINE))
    warned = {name for name, word in status.items() if word == "warn"}
    assert warned - {"time"} == {"users", "anchor"}, table  # a busy machine may be slow
    assert "wrong" not in status.values()


def test_the_status_shows_all_clients(followed):
    page = printed(followed, "prifedsync deploy status server")
    assert all(name in page for name in HOSPITALS)


def test_predictions_of_the_released_model(followed):
    rows = list(csv.DictReader((followed[0] / "predictions.csv").read_text().splitlines()))
    assert len(rows) == 20
    assert all(row["prediction"] in "0123456789" for row in rows)
    assert "accuracy" in printed(followed, "prifedsync evaluate server/run")


def test_the_run_is_closed_at_every_owner(followed):
    assert printed(followed, "prifedsync ledger end").count("closed") == len(HOSPITALS)


def test_nothing_of_an_owner_can_be_read_by_others(followed):
    for name in HOSPITALS:
        for path in (followed[0] / name / "owner").iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_nothing_is_left_running(followed):
    left = [process.name for process in Path("/proc").glob("[0-9]*") if works_in(process, followed[0])]
    assert not left


def works_in(process, folder):
    try:
        return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:  # it has ended, or is another user's
        return False
