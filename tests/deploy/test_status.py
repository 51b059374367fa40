"""The status of a run on real machines: written whole, read with suspicion, and shown by one command."""

import json
import os
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from prifedsync.cli import app
from prifedsync.deploy.places import ProjectPlaces
from prifedsync.deploy.status import ClientStatus, Status, is_late, place_of, read, write
from prifedsync.values import BadValue

NOW = 1_700_000_000.0
CLIENTS = (
    ClientStatus(
        name="a", node="online", answer="sent", since=NOW, answered=3, last=NOW + 1, shown={"auc": 0.5, "f1": None}
    ),
    ClientStatus(name="[red]<script>", node="offline", answer="lost", reason="was not reached", late=True, since=NOW),
    ClientStatus(name="c"),
)
STATUS = Status(
    run="ab" * 16, phase="training", round=3, rounds=30, begun=NOW, changed=NOW + 2, error="", clients=CLIENTS
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "status.json"


def test_a_status_is_read_as_it_was_written(path):
    write(path, STATUS)
    assert read(path) == STATUS
    write(path, replace(STATUS, phase="finished", clients=()))
    assert read(path).phase == "finished"
    assert os.listdir(path.parent) == ["status.json"]


def test_a_status_that_cannot_be_written_leaves_the_last_one(path):
    write(path, STATUS)
    with pytest.raises(ValueError, match="JSON compliant"):
        write(path, replace(STATUS, begun=float("nan")))
    assert read(path) == STATUS


def test_a_new_client_has_done_nothing():
    assert ClientStatus(name="c").__dict__ == {
        "name": "c", "node": "not registered", "answer": "", "reason": "", "late": False, "since": None, "answered": 0,
        "last": None, "shown": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "answer", "late"),
    [
        (NOW - 60, "asked", False),
        (NOW - 60.1, "asked", True),
        (NOW - 600, "sent", False),
        (NOW - 600, "lost", False),
        (None, "asked", False),
        (NOW + 5, "asked", False),
    ],
)
def test_whether_an_answer_is_late(asked, answer, late):
    assert is_late(NOW, asked, answer, 60.0) is late


def changed(**values):
    return {**STATUS.as_json(), **values}


def with_client(**values):
    return changed(clients=[{**STATUS.as_json()["clients"][0], **values}])


SHORT = {name: value for name, value in STATUS.as_json().items() if name != "error"}
WRONG = [
    *({}, [], None, 5, "status", SHORT, changed(more=1), with_client(more=1)),
    *(changed(run=5), changed(error=None), changed(phase="dancing"), changed(phase=["training"])),
    *(changed(round=-1), changed(round=1.5), changed(round=True), changed(rounds="3")),
    *(changed(begun="now"), changed(begun=-1), changed(begun=1e300), changed(changed=None), changed(changed=True)),
    *(changed(clients=None), changed(clients={}), changed(clients=[5])),
    *(with_client(name=None), with_client(name=["a"]), with_client(node="there"), with_client(node={})),
    *(with_client(answer="stayed"), with_client(reason=1), with_client(late=1)),
    *(with_client(since="now"), with_client(since=-5), with_client(since=10**400), with_client(last=[])),
    *(with_client(answered=-1), with_client(answered=1.0)),
    *(with_client(shown=[]), with_client(shown={"auc": "good"}), with_client(shown={"auc": True})),
]
ENDLESS = json.dumps(changed(begun=0.25)).replace("0.25", "1e999").encode()


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_status_of_another_form_is_refused_in_one_line(path, wrong):
    path.write_text(json.dumps(wrong))
    with pytest.raises(BadValue, match="is not a status that this version writes") as refused:
        read(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"run": NaN}', b"NaN", ENDLESS],
    ids=["nothing", "half", "no text", "too deep", "NaN inside", "NaN", "infinity"],
)
def test_damaged_bytes_are_refused_in_one_line(path, content):
    path.write_bytes(content)
    with pytest.raises(BadValue, match="is not a status that this version writes"):
        read(path)


def test_a_file_that_is_too_long_is_not_parsed(path, monkeypatch):
    monkeypatch.setattr("prifedsync.deploy.status.MOST_BYTES", 100)
    write(path, STATUS)
    with pytest.raises(BadValue, match="more than 100 bytes"):
        read(path)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def project(tmp_path):
    places = ProjectPlaces(tmp_path / "project")
    places.server.folder.mkdir(parents=True)
    places.server.settings.write_text("")
    return places


def test_a_project_and_its_server_have_one_status(project):
    assert place_of(project.folder) == project.server.status
    assert place_of(project.server.folder) == project.server.status
    project.server.settings.unlink()
    write(project.server.status, STATUS)  # a server's folder that somebody has cleaned up
    assert place_of(project.folder) == place_of(project.server.folder) == project.server.status


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(BadValue, match="is no project and no server's folder"):
        place_of(tmp_path)


def called(*arguments):
    return CliRunner().invoke(app, ["deploy", "status", *map(str, arguments)])


def test_the_command_prints_one_json_object(project):
    now = time.time()
    write(project.server.status, replace(STATUS, changed=now - 100))
    done = called(project.folder, "--json")
    assert done.exit_code == 0
    said = json.loads(done.output)
    assert 100 <= said.pop("age") < 160
    assert said == json.loads(json.dumps(replace(STATUS, changed=now - 100).as_json()))


def test_the_command_prints_a_table(project):
    write(project.server.status, replace(STATUS, changed=time.time() - 100))
    done = called(project.server.folder)
    assert done.exit_code == 0
    assert f"Run {'ab' * 6}: training, round 3 of 30" in done.output
    assert "[red]<script>" in done.output
    assert "the server's process has probably ended" in done.output


def test_the_command_refuses_what_is_not_there(project):
    refused = called(project.folder).exception
    assert isinstance(refused, BadValue)
    assert "is not there: no server has been started here yet" in str(refused)
