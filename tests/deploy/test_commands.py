"""`deploy init`, `deploy key` and `deploy certificate` as they are typed."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from prifedsync import cli
from prifedsync.deploy import processes
from prifedsync.deploy.nodes import make_node_key
from prifedsync.deploy.places import ServerPlaces, SitePlaces
from prifedsync.deploy.settings import server_settings

from .runs import written_config


@pytest.fixture
def call(monkeypatch, capsys):
    def called(*words, status=0):
        monkeypatch.setattr(sys, "argv", ["prifedsync", "deploy", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        seen = capsys.readouterr()
        assert (stopped.value.code or 0) == status, seen.err
        return seen.out if status == 0 else seen.err

    return called


@pytest.fixture
def project(tmp_path, call):
    call("init", tmp_path / "p", written_config(tmp_path), "--host", "fl.example.org", "--host", "10.0.0.7")
    return tmp_path / "p"


def test_what_init_says(tmp_path, call):
    source = written_config(tmp_path)
    said = call("init", tmp_path / "p", source, "--set", "rounds=4", "--port", 9443, "--reply-seconds", 2)
    assert "a server and 2 clients" in said
    assert "north: 30 records, a budget of mu = 0.66" in said
    assert "127.0.0.1:9443" in said
    assert said.splitlines()[-1] == f"next: read {tmp_path / 'p/README.md'}"
    assert server_settings(tmp_path / "p/server").listen.port == 9443


def test_what_init_says_as_json(tmp_path, call):
    said = json.loads(call("init", tmp_path / "p", written_config(tmp_path), "--json", "--insecure"))
    assert said["insecure"]
    assert said["records_copied"]
    assert said["server"] == "127.0.0.1:9092"
    assert said["clients"]["south"]["records"] == 40
    assert said["clients"]["south"]["folder"] == str(tmp_path / "p/clients/south")
    assert said["notes"] == []


def test_a_refusal_is_one_line(tmp_path, call):
    said = call("init", tmp_path / "p", "digits", status=2)
    assert said.count("\n") == 1
    assert "`prifedsync deploy init DIR` without a config writes an example" in said
    said = call("init", tmp_path / "p", "--insecure", "--host", "fl.example.org", status=2)
    assert said.startswith("prifedsync: host = fl.example.org cannot be combined with --insecure")
    assert not (tmp_path / "p").exists()


def test_a_key_is_replaced_on_demand_and_the_old_one_kept(project, call):
    site = SitePlaces(project / "clients/north/site")
    before = site.key.read_bytes()
    assert "add --new" in call("key", site.folder, status=2)
    line = call("key", site.folder, "--new")
    assert site.public.read_text() == line
    assert site.key.read_bytes() != before
    assert stat.S_IMODE(site.key.stat().st_mode) == 0o600
    kept = sorted(path.name for path in site.folder.iterdir() if path.name.startswith("node.key."))
    assert len(kept) == 3  # the public half, and both old ones
    assert any((site.folder / name).read_bytes() == before for name in kept)
    call("key", site.folder, "--new")
    assert len([path for path in site.folder.iterdir() if path.name.startswith("node.key.")]) == 5
    assert stat.S_IMODE(next(site.folder.glob("node.key.2*")).stat().st_mode) == 0o600


def test_a_lost_key_is_made_again(project, call):
    site = SitePlaces(project / "clients/north/site")
    site.key.unlink()
    assert call("key", site.folder).startswith("ecdsa-sha2-nistp384 ")


def test_a_key_needs_a_site_and_is_of_use(tmp_path, call):
    assert "has no site.toml" in call("key", tmp_path, status=2)
    call("init", tmp_path / "p", written_config(tmp_path), "--insecure")
    assert "no key is used" in call("key", tmp_path / "p/clients/north/site", "--new", status=2)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("status", "server"), "look as the server's user"),
        (("serve", "server"), "run this as the user whom it belongs to"),
        (("join", "clients/north/site"), "run this as the user whom it belongs to"),
        (("key", "clients/north/site"), "run this as the user whom it belongs to"),
    ],
)
def test_a_folder_of_another_user_is_refused_with_a_remedy(project, call, monkeypatch, words, remedy):
    folder = project / words[1]
    real = Path.is_file

    def closed(self):
        if self.is_relative_to(folder):
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "is_file", closed)
    said = call(words[0], folder, status=2)
    assert said == f"prifedsync: folder = {folder} cannot be entered (Permission denied); {remedy}\n"


def test_a_node_key_is_in_the_format_of_openssh(tmp_path):
    line = make_node_key(SitePlaces(tmp_path))
    secret = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert secret.curve.name == "secp384r1"
    assert load_ssh_public_key(line.encode()) == secret.public_key()
    if shutil.which("ssh-keygen"):
        told = subprocess.run(
            ["ssh-keygen", "-y", "-f", str(tmp_path / "node.key")], capture_output=True, text=True, check=True, timeout=30
        )
        assert told.stdout.split()[:2] == line.split()


def test_a_new_certificate(project, call):
    server = ServerPlaces(project / "server")
    before = server.certificate.read_bytes()
    authority = server.authority.read_bytes()
    assert "fl.example.org, localhost, 10.0.0.7, 127.0.0.1" in call("certificate", project)
    assert server.certificate.read_bytes() != before
    assert server.authority.read_bytes() == authority
    assert stat.S_IMODE(server.key.stat().st_mode) == 0o600
    said = call("certificate", project, "--host", "new.example.org")
    assert "new.example.org" in said
    assert "fl.example.org" not in said
    assert "host = a b" in call("certificate", project, "--host", "a b", status=2)


def test_an_insecure_project_has_no_certificate(tmp_path, call):
    call("init", tmp_path / "p", written_config(tmp_path), "--insecure")
    assert "has no authority/ca.key" in call("certificate", tmp_path / "p", status=2)


@pytest.mark.parametrize("package", ["flwr", "httpx"])
def test_without_the_extra_one_line_says_what_to_install(project, tmp_path, call, monkeypatch, package):
    monkeypatch.setattr(processes, "find_spec", lambda name: None if name == package else object())
    monkeypatch.setitem(sys.modules, package, None)
    for words in (("local", project, "--out", tmp_path / "out"), ("serve", project / "server")):
        _is_told(call(*words, status=2), package)
    _is_told(call("join", project / "clients/north/site", status=2), package)
    assert not (tmp_path / "out").exists()


def _is_told(said, package):
    assert said == (
        f"prifedsync: flower is not installed here: there is no package {package}; "
        "install the extra: pip install 'prifedsync[flower]'\n"
    )
