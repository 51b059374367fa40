"""`owner new` and `owner key` as an owner types them."""

import os
import stat
import subprocess
import sys
import tomllib

from prifedsync.local.masks import public_identity
from prifedsync.owner.keys import read_identity
from prifedsync.owner.policy import read


def call(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "prifedsync.cli", "owner", *words], capture_output=True, text=True, cwd=folder, check=False,
        timeout=120, env=os.environ | {"COLUMNS": "100"},
    )  # fmt: skip


def test_a_new_policy_is_private_and_readable(tmp_path):
    done = call(tmp_path, "new", "policy.toml", "--set", "client=b", "--set", "limits.rounds=7")
    assert done.returncode == 0, done.stderr
    assert "prifedsync owner check policy.toml" in done.stdout
    assert stat.S_IMODE((tmp_path / "policy.toml").stat().st_mode) == 0o600
    policy = read(tmp_path / "policy.toml")
    assert (policy.client, policy.limits.rounds) == ("b", 7)


def test_a_policy_that_is_there_stays(tmp_path):
    (tmp_path / "policy.toml").write_text("mine")
    done = call(tmp_path, "new", "policy.toml")
    assert done.returncode == 2
    assert done.stderr == "prifedsync: policy = policy.toml exists already; name a new file, or edit this one\n"
    assert (tmp_path / "policy.toml").read_text() == "mine"


def test_a_bad_field_of_a_new_policy_is_named(tmp_path):
    done = call(tmp_path, "new", "policy.toml", "--set", "limits.round=7")
    assert done.returncode == 2
    assert "limits.round = 7 is not a field; did you mean limits.rounds?" in done.stderr
    assert not (tmp_path / "policy.toml").exists()


def test_the_key_is_made_once_then_shown_and_replaced_only_on_demand(tmp_path):
    call(tmp_path, "new", "policy.toml", "--set", "masks.identity=identity.key")
    shown = []
    for words in (["key", "policy.toml"], ["key", "policy.toml"], ["key", "policy.toml", "--new"], ["key", "policy.toml"]):
        done = call(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == shown[1] != shown[2] == shown[3]
    public = public_identity(read_identity(read(tmp_path / "policy.toml"))).hex()
    assert shown[3] == f'"hospital-a" = "{public}"\n'
    secret = (tmp_path / "identity.key").read_text().strip()
    assert not any(secret in text for text in shown)


def test_the_line_of_a_key_is_toml_whatever_the_name(tmp_path):
    name = 'Sao "Paulo"'
    call(tmp_path, "new", "policy.toml", "--set", "masks.identity=identity.key", "--set", f"client='{name}'")
    (found,) = tomllib.loads(call(tmp_path, "key", "policy.toml").stdout)
    assert found == name


def test_a_key_needs_a_place(tmp_path):
    call(tmp_path, "new", "policy.toml")
    done = call(tmp_path, "key", "policy.toml")
    assert done.returncode == 2
    assert "masks.identity" in done.stderr
