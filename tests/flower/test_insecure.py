"""A project without TLS and keys, on one machine: `deploy init --insecure`, then one round of `deploy local`."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from .live import command, processes_of


def test_an_insecure_project_is_rehearsed(tmp_path, monkeypatch):
    project = tmp_path / "project"
    command("deploy", "init", project, "--set", "rounds=1", "--insecure")
    assert not list(project.rglob("*.key.pub"))
    with TemporaryDirectory() as copies:  # a short path: it holds sockets
        monkeypatch.setenv("TMPDIR", copies)
        said = command("deploy", "local", project, "--out", tmp_path / "run", "--reply-seconds", "0", "--json")
        assert not processes_of(copies)
        assert not list(Path(copies).glob("prifedsync-*"))
    answers = json.loads(said)["deployment"]["answers"]
    assert {counts["sent"] for counts in answers.values()} == {1}
    assert len(answers) == 3
    assert (tmp_path / "run" / "models" / "global.safetensors").is_file()
