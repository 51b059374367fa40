"""What a rehearsal uses and leaves alone: nothing runs here. `tests/flower` has whole rehearsals."""

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prifedsync.config import to_toml
from prifedsync.deploy import rehearsal as rehearsals
from prifedsync.deploy.places import ProjectPlaces
from prifedsync.deploy.rehearsal import Clients, clients_of, rehearse, rehearsed
from prifedsync.deploy.settings import site_settings
from prifedsync.files import write_file
from prifedsync.owner.checkup import LONGEST_SOCKET
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of
from prifedsync.values import BadValue

from .runs import BASE, made, survived, written_config


@pytest.fixture
def project(tmp_path):
    made(tmp_path / "p", written_config(tmp_path))
    return ProjectPlaces(tmp_path / "p")


def moved_records(project, name, place):
    """An owner's records, where its policy names them, as on a machine of its own."""
    places = project.client(name)
    policy = read(places.policy)
    content = (places.owner / "records.csv").read_bytes()
    write_file(place, content, private=True)
    changed = replace(policy, data=replace(policy.data, path=str(place)))
    write_file(places.policy, to_toml(changed).encode(), private=True)
    return content


def test_records_of_an_owner_are_neither_changed_nor_copied(project, tmp_path):
    content = moved_records(project, "north", tmp_path / "hospital.csv")
    with rehearsed(project.folder) as copy:
        policy = read(copy.client("north").policy)
        assert len(records_of(policy).train) == policy.source.records
        assert (policy.folder / policy.data.path).read_bytes() != content
        files = [path for path in copy.folder.rglob("*") if path.is_file()]
        assert content not in [path.read_bytes() for path in files]
    assert (tmp_path / "hospital.csv").read_bytes() == content
    assert (project.client("south").owner / "records.csv").read_bytes() == (tmp_path / "tables/south.csv").read_bytes()


def test_real_records_are_read_where_they_lie(project, tmp_path):
    content = moved_records(project, "north", tmp_path / "hospital.csv")
    with rehearsed(project.folder, real_records=True) as copy:
        for name in ("north", "south"):
            policy = read(copy.client(name).policy)
            assert (policy.folder / policy.data.path).read_bytes() == (tmp_path / f"tables/{name}.csv").read_bytes()
    assert (tmp_path / "hospital.csv").read_bytes() == content


def test_an_owners_own_daemon_is_not_asked(project, tmp_path):
    site = project.client("north").site
    write_file(site / "site.toml", to_toml(replace(site_settings(site), socket="/run/owner.sock")).encode())
    with rehearsed(project.folder) as copy:
        place = copy.client("north")
        assert site_settings(place.site).owner.resolve() == read(place.policy).path("socket").resolve()


def test_clients_of_any_name_are_rehearsed(tmp_path):
    names = {"run": 30, "flower": 31, "a.log": 32, "b.csv": 33, "ledger.db": 34}
    made(tmp_path / "p", written_config(tmp_path, clients=names))
    with rehearsed(tmp_path / "p") as copy:
        assert {read(place.policy).client for place in clients_of(copy)} == set(names)
        assert {path.stem for path in copy.server.nodes.iterdir()} == set(names)


def test_arrays_that_cannot_be_made_up_are_named_where_the_owner_has_them(tmp_path):
    for seed, name in enumerate(("north", "south")):
        draw = np.random.default_rng(seed)
        (tmp_path / "arrays").mkdir(exist_ok=True)
        np.savez(tmp_path / f"arrays/{name}.npz", x=draw.random((20, 3)), y=draw.integers(0, 2, 20))
    text = BASE.replace('"csv"', '"npz"').replace('"tables"', '"arrays"').replace('categories = { sex = ["f", "m"] }', "")
    (tmp_path / "run.toml").write_text(text.replace("{ age = [0, 100], dose = [0, 1] }", '{ "*" = [0, 1] }'))
    made(tmp_path / "p", tmp_path / "run.toml")
    place = tmp_path / "p/clients/north/owner/records.npz"
    with pytest.raises(BadValue) as refused:
        rehearse(tmp_path / "p", tmp_path / "out")
    assert str(refused.value).startswith(f"data.path = {place} cannot be made up")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_refused_at_once(project, tmp_path):
    with pytest.raises(BadValue, match=r"out = .* cannot be made"):
        rehearse(project.folder, tmp_path / "run.toml/out")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_stays_where_a_signal_ends_it(project, tmp_path, monkeypatch, number):
    seen = []

    def interrupted(copy):
        seen.append(copy.folder)
        assert copy.folder.is_dir()
        signal.raise_signal(number)

    monkeypatch.setattr(rehearsals, "Clients", interrupted)
    with survived(number), pytest.raises(KeyboardInterrupt):  # also where pytest itself runs under nohup
        rehearse(project.folder, tmp_path / "out")
    (folder,) = seen
    assert not Path(folder).exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_stays_where_it_is_ended_while_it_is_copied(project, tmp_path, monkeypatch, number):
    """The copy holds keys."""
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    monkeypatch.setattr(rehearsals, "_move_server", lambda copy, port, reply: os.kill(os.getpid(), number))
    with survived(number), pytest.raises(KeyboardInterrupt):
        rehearse(project.folder, tmp_path / "out")
    assert list(copies.iterdir()) == []


def test_a_long_name_has_a_socket_all_the_same(tmp_path):
    name = "연세대학교세브란스병원"
    made(tmp_path / "p", written_config(tmp_path, clients={name: 30, "b": 31}))
    with rehearsed(tmp_path / "p") as copy:
        for place in clients_of(copy):
            assert len(str(read(place.policy).path("socket"))) <= LONGEST_SOCKET
    (unit,) = [path.read_text() for path in (tmp_path / "p/clients").glob("%*/prifedsync-owner.service")]
    home = unit.partition("owner serve ")[2].partition("/owner/policy.toml")[0]
    assert len(f"{home}/owner/../door/owner.sock") <= LONGEST_SOCKET
    (page,) = [path.read_text() for path in (tmp_path / "p/clients").glob("%*/README.md")]
    assert f"copy this folder to `{home}`" in page


@pytest.mark.parametrize("name", ["node.key", "ca.crt", "tasks.secret"])
def test_a_client_that_could_not_come_is_named_before_anything_starts(project, name):
    path = project.client("north").site / name
    path.unlink()
    with pytest.raises(BadValue, match=f"site = {path} is not there"), rehearsed(project.folder):
        pass


def test_a_project_without_its_clients_is_none(project):
    project.clients.rename(project.folder / "given")
    with pytest.raises(BadValue, match="is not a project"), rehearsed(project.folder):
        pass


@pytest.mark.parametrize("place", ["clients/south/owner/policy.toml", "server/preprocessing.json"])
def test_a_file_that_is_missing_is_named_where_it_should_lie(project, place):
    path = project.folder / place
    path.unlink()
    with pytest.raises(BadValue) as refused, rehearsed(project.folder):
        pass
    assert str(path) in str(refused.value)


def test_an_empty_folder_may_take_the_run_and_another_may_not(project, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsals, "Clients", interrupt)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):  # it went on to its clients
        rehearse(project.folder, tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    with pytest.raises(BadValue, match="is not empty"):
        rehearse(project.folder, tmp_path / "full")
    assert (tmp_path / "full/notes.txt").exists()


def interrupt(copy):
    raise KeyboardInterrupt


def test_all_processes_are_asked_to_end_before_any_is_waited_for(project):
    """Each may take seconds, and whoever pressed Ctrl-C waits for all of them."""
    done = []

    class Stub:
        def __init__(self, name):
            self.name = name

        def ask_to_end(self):
            done.append(("asked", self.name))

        def end(self):
            done.append(("ended", self.name))
            if self.name == "owner":
                raise OSError("this one does not end well")

    clients = Clients(project)
    clients.owners["north"] = Stub("owner")
    clients.sites["north"] = Stub("site")
    with pytest.raises(OSError, match="does not end well"):
        clients.end()
    assert [what for what, _ in done] == ["asked", "asked", "ended", "ended"]
