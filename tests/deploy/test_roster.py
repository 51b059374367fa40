"""What a server says of its roster before it starts anything."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from prifedsync.deploy.authority import issue, new_authority
from prifedsync.deploy.nodes import make_node_key
from prifedsync.deploy.places import ServerPlaces, SitePlaces
from prifedsync.deploy.roster import check_files, check_roster, roster
from prifedsync.deploy.settings import ServerSettings
from prifedsync.values import BadValue


@pytest.fixture
def places(tmp_path):
    places = ServerPlaces(tmp_path / "server")
    places.nodes.mkdir(parents=True, mode=0o700)
    places.folder.chmod(0o700)
    places.key.parent.mkdir(mode=0o700)
    for path in (places.config, places.preprocessing, places.secret, places.key, places.certificate, places.authority):
        path.write_bytes(b"x")
        path.chmod(0o600)
    for name in ("a", "b%20c"):
        write(places, name, tmp_path / name)
    return places


def write(places, name, folder):
    folder.mkdir()
    line = make_node_key(SitePlaces(folder))
    (places.nodes / f"{name}.pub").write_text(f"{line}\n")
    return line


def noted(places, names=("a", "b c"), **settings):
    notes = []
    check_roster(ServerSettings(**settings), places, names, notes.append)
    return [note.text for note in notes]


def test_a_good_roster_needs_no_word(places):
    assert set(roster(places.nodes)) == {"a", "b c"}
    assert noted(places) == []


def test_who_has_no_key_and_who_is_no_client_is_said(places):
    assert noted(places, ("a", "b c", "d")) == ["client d has no key in nodes/ yet, and cannot come without"]
    assert noted(places, ("a",)) == ["nodes/ has a key of b c, which is not a client of config.toml"]


def test_one_key_under_two_names_is_refused(places):
    line = (places.nodes / "a.pub").read_text()
    (places.nodes / "b%20c.pub").write_text(line)
    with pytest.raises(BadValue, match=r"b%20c\.pub is the key of client a too"):
        noted(places)


@pytest.mark.parametrize("line", ["", "ecdsa-sha2-nistp384", "-----BEGIN PUBLIC KEY-----", "ssh-ed25519 AAAA"])
def test_what_is_no_key_is_refused_by_its_name(places, line):
    (places.nodes / "a.pub").write_text(line)
    with pytest.raises(BadValue, match=r"nodes/a\.pub is no public key of a SuperNode"):
        noted(places)


def test_a_key_that_the_server_cannot_read_is_refused_and_ends_no_run(places, monkeypatch):
    path = places.nodes / "b%20c.pub"
    readable, read = os.access, Path.read_bytes

    def denied(self):
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self)

    monkeypatch.setattr(os, "access", lambda file, mode: Path(file) != path and readable(file, mode))
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(BadValue, match=r"nodes/b%20c\.pub = .* cannot be read by the user .*; chmod go\+r "):
        noted(places)
    assert roster(places.nodes) == {"a": read(places.nodes / "a.pub"), "b c": b""}  # no key: the last good one stays


@pytest.mark.parametrize("name", ["config", "preprocessing", "secret", "key", "certificate", "authority"])
def test_a_file_that_is_missing_is_named(places, name):
    path = getattr(places, name)
    path.unlink()
    with pytest.raises(BadValue, match=f"server = {path} is not there; .* copy the whole folder"):
        check_files(ServerSettings(), places)
    if name in ("certificate", "key", "authority"):
        check_files(ServerSettings(insecure=True), places)
    else:
        with pytest.raises(BadValue, match="is not there"):
            check_files(ServerSettings(insecure=True), places)


@pytest.mark.parametrize(("shown", "days"), [("is valid from .* set the clock", -900), ("is valid from", 2)])
def test_a_certificate_of_another_time_is_refused_at_once(places, shown, days):
    authority = new_authority()
    places.authority.write_bytes(authority.pem)
    places.certificate.write_bytes(issue(authority, ["fl.example.org"])[1])
    check_files(ServerSettings(), places)
    places.certificate.write_bytes(issue(authority, ["fl.example.org"], datetime.now(UTC) + timedelta(days=days))[1])
    with pytest.raises(BadValue, match=f"certificate = .*{shown}"):
        check_files(ServerSettings(), places)
    check_files(ServerSettings(insecure=True), places)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"half a certificate"])
def test_a_damaged_certificate_is_refused_by_its_file(places, content):
    authority = new_authority()
    for name, good in (("certificate", issue(authority, ["fl.example.org"])[1]), ("authority", authority.pem)):
        getattr(places, name).write_bytes(good)
    for path in (places.certificate, places.authority):
        good = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(BadValue, match=f"certificate = {path} is no certificate; .*deploy certificate"):
            check_files(ServerSettings(), places)
        path.write_bytes(good)
    check_files(ServerSettings(), places)


def test_who_cannot_come_is_said_in_the_order_of_the_config(places):
    names = [f"client {number}" for number in range(20)]
    said = [note for note in noted(places, names) if "has no key" in note]
    assert said == [f"client {name} has no key in nodes/ yet, and cannot come without" for name in names]


@pytest.mark.parametrize("name", ["secret", "key"])
def test_a_secret_that_others_may_read_is_refused(places, name):
    getattr(places, name).chmod(0o644)
    with pytest.raises(BadValue, match="may be read or changed by other users"):
        noted(places)


def test_without_keys_nodes_are_not_looked_at(places):
    (places.nodes / "a.pub").write_text("nonsense")
    assert noted(places, insecure=True) == []
