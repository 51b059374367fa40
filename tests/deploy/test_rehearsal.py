"""A rehearsal is a copy: nothing outside of it is asked, written or left behind."""

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from prifedsync.config import to_toml
from prifedsync.deploy import rehearsal
from prifedsync.deploy.places import ProjectPlaces
from prifedsync.deploy.rehearsal import clients_of, rehearse, rehearsed
from prifedsync.deploy.settings import site_settings
from prifedsync.files import write_file
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of

from .runs import made, rows, survived, table, written_config

CLIENTS = ("north", "south")


@pytest.fixture
def project(tmp_path):
    made(tmp_path / "project", written_config(tmp_path))
    return ProjectPlaces(tmp_path / "project")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Where copies are made."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def with_records_at(places, path):
    policy = read(places.policy)
    changed = replace(policy, data=replace(policy.data, path=str(path)))
    write_file(places.policy, to_toml(changed).encode(), private=True)


def test_records_of_an_owner_that_lie_elsewhere_stay_as_they_are(project, tmp_path):
    """A policy may name any file of the machine: made-up records must not be written there."""
    real = tmp_path / "disk" / "real.csv"
    table(real, rows(30, seed=7))
    real.chmod(0o600)
    with_records_at(project.client("north"), real)
    before = real.read_bytes()
    notes = []
    with rehearsed(project.folder, note=notes.append) as copy:
        policies = {place.folder.name: read(place.policy) for place in clients_of(copy)}
        assert real.read_bytes() == before
        for policy in policies.values():
            found = policy.folder / policy.data.path
            assert found.resolve().is_relative_to(copy.folder.resolve())
            assert found.read_bytes() != before
            records_of(policy)
    assert notes == [f"the records of client {name} are made up" for name in CLIENTS]
    with rehearsed(project.folder, real_records=True) as copy:
        assert (copy.client("north").owner / read(copy.client("north").policy).data.path).read_bytes() == before
    assert real.read_bytes() == before


def test_real_records_are_not_in_a_copy_with_made_up_ones(project):
    real = {name: (project.client(name).owner / "records.csv").read_bytes() for name in CLIENTS}
    with rehearsed(project.folder) as copy:
        for path in copy.folder.rglob("*"):
            if path.is_file():
                assert path.read_bytes() not in real.values()


def test_the_daemon_of_a_real_owner_is_not_asked(project, tmp_path):
    """A site may name the socket of a daemon that runs: asked there, a rehearsal would spend a real budget."""
    site = project.client("north").site
    settings = replace(site_settings(site), socket=str(tmp_path / "real.sock"))
    write_file(site / "site.toml", to_toml(settings).encode())
    with rehearsed(project.folder) as copy:
        for place in clients_of(copy):
            assert site_settings(place.site).owner.resolve() == read(place.policy).path("socket").resolve()
            assert site_settings(place.site).owner.resolve().is_relative_to(copy.folder.resolve())


@pytest.mark.parametrize("name", ["run", "flower", "ward.log"])
def test_a_client_may_have_the_name_of_a_file_that_is_left_out(tmp_path, name):
    made(tmp_path / "project", written_config(tmp_path, clients={name: 30, "south": 40}))
    with rehearsed(tmp_path / "project") as copy:
        assert {place.folder.name for place in clients_of(copy)} == {name, "south"}


class Started:
    """The clients of a rehearsal that is ended while they start."""

    ended = False

    def __init__(self, copy):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Started.ended = True

    def wait_for_owners(self):
        os.kill(os.getpid(), Started.number)
        raise AssertionError("it goes on")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_rehearsal_that_is_ended_while_it_starts_leaves_nothing(project, elsewhere, monkeypatch, number):
    """Its copy holds keys, and perhaps records."""
    Started.number = number
    Started.ended = False
    monkeypatch.setattr(rehearsal, "Clients", Started)
    with survived(number), pytest.raises(KeyboardInterrupt):
        rehearse(project.folder, Path(project.folder) / "out")
    assert Started.ended
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_one_that_is_ended_while_it_is_copied_leaves_nothing_either(project, elsewhere, monkeypatch, number):
    monkeypatch.setattr(rehearsal, "_move_server", lambda copy, port: os.kill(os.getpid(), number))
    with survived(number), pytest.raises(KeyboardInterrupt):
        rehearse(project.folder, Path(project.folder) / "out")
    assert list(elsewhere.iterdir()) == []
