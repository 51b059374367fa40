"""A project without TLS and keys, on one machine: `deploy init --insecure`, then one round of `deploy local`."""

import json

from .live import command, processes_of


def test_an_insecure_project_is_rehearsed(tmp_path):
    project = tmp_path / "project"
    command("deploy", "init", project, "--set", "rounds=1", "--insecure")
    assert not list(project.rglob("*.key.pub"))
    record = json.loads(command("deploy", "local", project, "--out", tmp_path / "run", "--reply-seconds", "0", "--json"))
    assert {counts["sent"] for counts in record["deployment"]["answers"].values()} == {1}
    assert len(record["deployment"]["answers"]) == 3
    assert (tmp_path / "run" / "models" / "global.safetensors").is_file()
    assert not processes_of(project)
