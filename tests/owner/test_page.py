"""docs/owner.md, followed literally: its commands in their order, in one shell, in an empty folder."""

import configparser
import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from subprocess import run

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import up
from prifedsync.asking.refusals import Refusal
from prifedsync.owner.policy import EXAMPLE, from_mapping

PAGE = (Path(__file__).parents[2] / "docs" / "owner.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
SECONDS = 300


def bodies(language):
    return [body for name, body in BLOCKS if name == language]


def commands():
    lines = [line for body in bodies("console") for line in body.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder after all commands, and what they printed, by command."""
    folder = tmp_path_factory.mktemp("page")
    programs = folder / "bin"
    programs.mkdir()
    for name, words in {"python": "", "prifedsync": "-m prifedsync.cli "}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
        (programs / name).chmod(0o755)
    (ask,) = bodies("python")
    (folder / "ask.py").write_text(ask)
    script = ["set -eu", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for number, command in enumerate(commands()):
        script += [f"echo '@@{number}'", "cp ../ask.py . " if command == "python ask.py" else "", command]
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "100"}
    done = run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stderr == ""
    said = dict(re.findall(r"^@@(\d+)\n(.*?)(?=^@@|\Z)", done.stdout, flags=re.DOTALL | re.MULTILINE))
    return folder / "owner", {command: said[str(number)] for number, command in enumerate(commands())}


def printed(followed, beginning):
    """What the last command that begins so has printed."""
    return [text for command, text in followed[1].items() if command.startswith(beginning)][-1]


def test_all_of_it_is_followed():
    words = [" ".join(command.split()[:3]) for command in commands()]
    for command in ("owner new", "owner key", "ledger new", "owner check", "owner serve", "owner status"):
        assert f"prifedsync {command}" in words
    for command in ("show", "export", "verify", "end", "backup", "restore"):
        assert f"prifedsync ledger {command}" in words
    assert "python ask.py" in commands()


def test_three_rounds_are_answered(followed):
    rounds = printed(followed, "python ask.py").splitlines()
    assert [line.split(":")[0] for line in rounds] == ["round 1", "round 2", "round 3"]
    assert all("Sent(" in line for line in rounds)


def test_the_check_warns_where_the_page_says_so(followed):
    table = printed(followed, "prifedsync owner check")
    status = dict(re.findall(r"^(\w+(?: \w+)?) +(ok|warn|wrong) ", table, flags=re.MULTILINE))
    warned = {name for name, word in status.items() if word == "warn"}
    assert warned - {"time"} == {"users", "masks", "anchor"}  # a busy machine may be slow
    assert "wrong" not in status.values()


def test_the_receipt_is_signed_and_in_the_ledger(followed):
    receipt = json.loads((followed[0] / "receipt.json").read_text())
    assert receipt["run"] == "00112233445566778899aabbccddeeff"
    assert receipt["identity"] in printed(followed, "prifedsync ledger verify policy.toml --receipt")


def test_the_run_was_ended_and_restored_as_it_was(followed):
    assert "closed" in printed(followed, "prifedsync ledger end")
    assert "restored" in printed(followed, "prifedsync ledger restore")


def test_the_key_was_replaced_and_the_old_one_kept(followed):
    keys = [path for path in followed[0].iterdir() if path.name.startswith("identity.key")]
    assert len(keys) == 2
    assert printed(followed, "prifedsync owner key policy.toml --new") != followed[1]["prifedsync owner key policy.toml"]


def test_nothing_of_the_owner_can_be_read_by_others(followed):
    for path in [*followed[0].iterdir(), *(followed[0].parent / "second-disk").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert followed[0].stat().st_mode & 0o077 == 0


def test_the_number_on_the_page_is_right():
    (said,) = re.findall(r"have μ = √3 · 2/20 = ([\d.]+) of the budget", PAGE)
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=20.0, records=1000, batch="full", local_steps=1), rounds=3)
    assert said == up(plan.guarantee().mu().upper, 2)


def test_every_refusal_is_on_the_page_and_no_other():
    section = PAGE.partition("## What each refusal means")[2]
    shown = re.findall(r"^\| (.*?) \| (.*?) \|$", section, flags=re.MULTILINE)[1:]
    assert [text for text, _ in shown if text != "---"] == [refusal.value for refusal in Refusal]
    assert all(remedy for _, remedy in shown)


def unit_files():
    owner, net = bodies("ini")
    found = []
    for body in (owner, net):
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str
        parser.read_string(body)
        found.append(parser)
    return found


def test_the_units_keep_the_two_users_apart():
    owner, net = (unit["Service"] for unit in unit_files())
    assert owner["User"] == "prifedsync-owner"
    assert net["User"] == "prifedsync-net"
    wanted = {
        "UMask": "0077",
        "StateDirectoryMode": "0700",
        "RuntimeDirectoryMode": "0750",
        "ProtectSystem": "strict",
        "PrivateNetwork": "yes",
        "NoNewPrivileges": "yes",
        "RestrictAddressFamilies": "AF_UNIX",
        "LimitCORE": "0",
    }
    assert wanted.items() <= dict(owner).items()
    assert f"/var/lib/{owner['StateDirectory']}" in net["InaccessiblePaths"].split()
    (shell,) = bodies("sh")
    assert f"--gid {owner['Group']} {owner['User']}" in shell
    assert f"--groups {owner['Group']} {net['User']}" in shell


def test_the_policy_for_two_users_is_read():
    (body,) = bodies("toml")
    policy = from_mapping({**EXAMPLE, **tomllib.loads(body)})
    owner, net = (unit["Service"] for unit in unit_files())
    assert policy.users == (net["User"],)
    assert policy.files.socket == f"/run/{owner['RuntimeDirectory']}/owner.sock"
    assert str(Path(policy.files.anchor).parent) == owner["ReadWritePaths"]
