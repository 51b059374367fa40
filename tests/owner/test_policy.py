"""The policy file: what it takes, what it refuses and with which words, and who may read the files that it names."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from prifedsync.config import as_mapping
from prifedsync.owner import permissions
from prifedsync.owner.policy import EXAMPLE, Policy, example, from_mapping, read
from prifedsync.values import BadValue

KEY = "{:064x}"


def written(folder, *overrides):
    path = folder / "policy.toml"
    path.write_text(example(overrides))
    path.chmod(0o600)
    return path


def given(**changes):
    """The example with other values; "limits__rounds" is limits.rounds."""
    values = {name: dict(value) if isinstance(value, dict) else value for name, value in EXAMPLE.items()}
    for name, value in changes.items():
        table, _, key = name.rpartition("__")
        if table:
            values.setdefault(table, {})[key] = value
        else:
            values[key] = value
    return values


def refused(**changes):
    with pytest.raises(BadValue) as caught:
        from_mapping(given(**changes))
    return caught.value


def test_the_file_that_a_new_owner_gets_is_read_back_as_it_was_written(tmp_path):
    policy = read(written(tmp_path))
    assert policy == replace(from_mapping(EXAMPLE), folder=tmp_path.resolve())
    assert policy.limits.models == ("softmax",)


def test_every_field_is_in_the_file_with_its_documentation():
    lines = example().splitlines()
    for table in tomllib.loads(example()).items():
        names = table[1] if isinstance(table[1], dict) else [table[0]]
        for name in names:
            (at,) = (i for i, line in enumerate(lines) if line.startswith(f"{name} = ") and table_of(lines, i) == table[0])
            assert re.match(r"# .{10,} — ", lines[at - 1]), name
    assert "# epsilon =" in lines  # of two that exclude each other, one is shown without a value
    assert not any(line.startswith("folder") for line in lines)


def table_of(lines, at):
    heads = [line.strip("[]") for line in lines[: at + 1] if line.startswith("[")]
    return heads[-1] if heads else lines[at].split(" = ")[0]


def test_overrides_are_written_into_a_new_file(tmp_path):
    policy = read(written(tmp_path, "source.records=42", 'limits.models=["mlp"]', 'masks.peers.b="' + KEY.format(7) + '"'))
    assert policy.source.records == 42
    assert policy.limits.models == ("mlp",)
    assert policy.masks.peers == {"b": KEY.format(7)}


def test_a_budget_in_epsilon_replaces_the_one_of_the_example(tmp_path):
    policy = read(written(tmp_path, "budget.epsilon=2.0", "budget.delta=1e-6"))
    assert (policy.budget.mu, policy.budget.epsilon, policy.budget.delta) == (None, 2.0, 1e-6)


def test_paths_start_at_the_folder_of_the_policy(tmp_path):
    policy = read(written(tmp_path, "files.anchor=/elsewhere/anchor", "masks.identity=keys/own"))
    assert policy.path("ledger") == tmp_path.resolve() / "ledger.db"
    assert policy.path("anchor") == Path("/elsewhere/anchor")
    assert policy.path("identity") == tmp_path.resolve() / "keys/own"
    assert from_mapping(EXAMPLE).path("anchor") is None


REFUSED = [
    ({"clinet": "x"}, "clinet", "is not a field; did you mean client?"),
    ({"limits__model": ["mlp"]}, "limits.model", "did you mean limits.models?"),
    ({"zzz": 1}, "zzz", "prifedsync owner new FILE writes a policy with all fields"),
    ({"folder": "/"}, "folder", "is not a field"),
    ({"client": ""}, "client", "must be set"),
    ({"client": "a\nb"}, "client", "can be printed"),
    ({"source__name": ""}, "source.name", "must be set"),
    ({"source__records": 0}, "source.records", "a whole number in [1"),
    ({"budget__mu": None}, "[budget]", "sets no budget; give exactly one of budget.mu and budget.epsilon"),
    ({"budget__epsilon": 1.0}, "[budget]", "sets the budget twice"),
    ({"budget__mu": 0.0}, "budget.mu", "(0, 1000]"),
    ({"budget__mu": float("nan")}, "budget.mu", "(0, 1000]"),
    ({"limits__least_noise": 0.0}, "limits.least_noise", "in [0.05"),
    ({"limits__models": []}, "limits.models", "must name at least one model"),
    ({"limits__models": ["resnet"]}, "limits.models", "must be a built-in model"),
    ({"limits__models": ["net.py:net"]}, "limits.models", '"module:function"'),
    ({"limits__models": ["../net:net"]}, "limits.models", '"module:function"'),
    ({"limits__rules": []}, "limits.rules", "must name at least one rule"),
    ({"limits__rules": ["a/b.py:Rule"]}, "limits.rules", '"module:function"'),
    ({"masks__peers": {"b": "ab"}}, "masks.peers.b", "64 hexadecimal digits"),
    ({"masks__peers": {"b": KEY.format(10).upper()}}, "masks.peers.b", "in lower case"),
    ({"masks__peers": {"hospital-a": KEY.format(1)}}, "masks.peers.hospital-a", "this owner's own name"),
    ({"masks__peers": {"b": KEY.format(1), "c": KEY.format(1)}}, "masks.peers", "the key of two peers"),
    ({"masks__required": True}, "masks.identity", "must be set with masks.required = true"),
    (
        {"masks__required": True, "masks__identity": "k", "limits__participants": 1},
        "limits.participants",
        "must be at least 2",
    ),
    ({"source__unit": "person"}, "source.unit", "does not fit data.person"),
    ({"data__person": "who"}, "source.unit", "does not fit data.person"),
    (
        {"source__unit": "person", "data__person": "who", "source__holders": 2},
        "data.person_clients",
        "is not source.holders = 2",
    ),
    ({"data__client_column": "site"}, "data.client_column", "are its own"),
    ({"data__overlap": True}, "data.overlap", "set source.holders"),
    ({"data__path": ""}, "data.path", "must be set for data.source = csv"),
    (
        {"source__neighbours": "add-remove", "data__test_fraction": 0.1},
        "data.test_fraction",
        "private number of records",
    ),
    ({"files__ledger": ""}, "files.ledger", "must be set"),
    ({"files__anchor": "ledger.db"}, "files.anchor", "is files.ledger too"),
    ({"replies__seconds": -1}, "replies.seconds", "[0, 86400]"),
]


@pytest.mark.parametrize(("changes", "field", "words"), REFUSED, ids=lambda v: str(v)[:50])
def test_what_is_refused_is_named_with_its_rule(changes, field, words):
    error = refused(**changes)
    assert error.field == field
    assert words in str(error)


def test_a_policy_made_in_python_is_checked_too():
    with pytest.raises(BadValue, match="must be set"):
        Policy()
    policy = from_mapping(EXAMPLE)
    none = replace(policy.limits, rounds=0)
    with pytest.raises(BadValue, match=r"limits\.rounds"):
        replace(policy, limits=none)


def test_persons_and_installed_code_are_taken():
    policy = from_mapping(
        given(
            source__unit="person",
            source__holders=3,
            data__person="who",
            data__person_clients=3,
            limits__models=["shop.nets:net"],
            limits__rules=["fedavg", "shop.rules:Own"],
        )
    )
    assert policy.source.unit == "person"
    said = as_mapping(policy)
    del said["folder"]
    assert from_mapping(said) == policy


def test_a_file_that_is_no_policy_is_refused_with_its_name(tmp_path):
    path = tmp_path / "p.toml"
    with pytest.raises(BadValue, match=r"policy = .*p\.toml cannot be read: No such file"):
        read(path)
    path.write_text("client = ")
    with pytest.raises(BadValue, match=r"policy = .*p\.toml is not TOML"):
        read(path)


# ---------------------------------------------------------------------- who may read the files


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o640, 0o620, 0o601])
def test_a_policy_that_others_may_read_or_change_is_refused_with_the_cure(tmp_path, mode):
    path = written(tmp_path)
    path.chmod(mode)
    with pytest.raises(BadValue) as caught:
        read(path)
    assert caught.value.field == "policy"
    assert caught.value.remedy == f"chmod 600 {path}"
    subprocess.run(caught.value.remedy.split(), check=True)
    assert read(path)


@pytest.mark.parametrize(
    ("field", "name"),
    [("files.ledger", "ledger.db"), ("files.anchor", "anchor"), ("files.log", "owner.log"), ("masks.identity", "key")],
)
def test_a_secret_file_that_others_may_read_is_refused(tmp_path, field, name):
    path = written(tmp_path, "files.anchor=anchor", "masks.identity=key")
    assert read(path)
    (tmp_path / name).touch(0o600)
    assert read(path)
    (tmp_path / name).chmod(0o644)
    with pytest.raises(BadValue) as caught:
        read(path)
    assert caught.value.field == field
    assert caught.value.remedy == f"chmod 600 {tmp_path.resolve() / name}"


def test_a_folder_that_others_may_change_is_refused(tmp_path):
    inner = tmp_path / "open"
    inner.mkdir()
    inner.chmod(0o770)
    path = written(inner)
    with pytest.raises(BadValue, match=f"chmod go-w {inner}"):
        read(path)
    inner.chmod(0o750)
    assert read(path)


def test_a_link_in_a_folder_that_others_may_change_is_refused(tmp_path):
    safe, shared = tmp_path / "safe", tmp_path / "shared"
    safe.mkdir(0o700)
    shared.mkdir()
    link = shared / "policy.toml"
    link.symlink_to(written(safe))
    shared.chmod(0o777)
    with pytest.raises(BadValue, match=f"chmod go-w {shared}"):
        read(link)
    shared.chmod(0o755)
    assert read(link)


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path)
    owner = os.stat(path).st_uid
    monkeypatch.setattr(permissions.os, "geteuid", lambda: owner + 1)
    if owner == permissions.SUPERUSER:
        assert read(path)  # what belongs to the superuser nobody else can have changed
        os.chown(path, owner + 2, -1)
    with pytest.raises(BadValue, match="belongs to another user"):
        read(path)


def test_a_secret_file_that_the_superuser_made_for_another_user_is_refused_at_once(tmp_path, monkeypatch):
    path = written(tmp_path, 'masks.identity="identity.key"')
    key = tmp_path / "identity.key"
    key.write_text(64 * "a")
    key.chmod(0o600)
    assert read(path)
    readable = os.access
    monkeypatch.setattr(permissions.os, "access", lambda file, mode: Path(file) != key and readable(file, mode))
    with pytest.raises(BadValue, match=r"masks.identity = .*identity\.key cannot be read by the user .*; chown it"):
        read(path)


def test_a_policy_is_read_without_torch(tmp_path):
    path = written(tmp_path)
    code = f"""
import sys
sys.modules["torch"] = None
from prifedsync.owner.policy import read
assert read({str(path)!r}).client == "hospital-a"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
