"""A server whose clients are desks in this process, behind a SuperLink in memory: starts, restarts and refusals."""

import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import SimpleNamespace

import pytest

from prifedsync import cli
from prifedsync.asking.frames import PREFIX, answer_frame, read_prefix, read_question
from prifedsync.asking.questions import Answer
from prifedsync.asking.refusals import Refusal
from prifedsync.deploy import board as boards
from prifedsync.deploy import rehearsal as rehearsals
from prifedsync.deploy import serving
from prifedsync.deploy.places import ProjectPlaces
from prifedsync.deploy.serving import serve
from prifedsync.deploy.settings import server_settings
from prifedsync.engines import owners as owners_module
from prifedsync.engines.flower import exchange as exchanges
from prifedsync.engines.flower import letters
from prifedsync.events import RoundDone
from prifedsync.owner.desk import Desk
from prifedsync.owner.ledger import Ledger
from prifedsync.owner.ledger.pages import kept_for
from prifedsync.owner.log import OwnerLog
from prifedsync.owner.records import records_of
from prifedsync.record import UPPER_BOUNDS
from prifedsync.values import BadValue

from ..engines.flower.faking import FakeLink, faster, identity
from ..owner.federations import ONE_PROCESS
from .runs import made, policies, survived, written_config

CLIENTS = ("north", "south")


class Owner:
    """One owner's desk, as a site asks it, and all slots that it was asked for."""

    def __init__(self, policy, ledger, folder):
        self.ledger = ledger
        self.asked = []
        self.before = lambda question: None  # the owner is asked
        self._desk = Desk(policy, ledger, records_of(policy), OwnerLog(folder / f"{policy.client}.log"))

    def __call__(self, link, message):
        frame = letters.frame_of(message)
        end = PREFIX.size + read_prefix(frame[: PREFIX.size]).header
        question = read_question(frame[PREFIX.size : end])
        if isinstance(question, Answer):
            question = Answer(**{**vars(question), "helper": frame[end:]})
            self.asked.append((question.round, question.attempt))
            self.before(question)
        with ONE_PROCESS:
            answered = self._desk.decide(question, "1")
        link.reply(message, letters.content_of(answer_frame(answered)))

    @property
    def charged(self):
        (run,) = self.ledger.runs()
        return run.asked


class Deployment:
    """A project whose owners are here, and its server."""

    def __init__(self, project, owners):
        self.places = ProjectPlaces(project).server
        self.owners = owners
        self.links = []
        self.most = 0  # bytes that an answer may have

    def link(self, *given, **more):
        self.most = given[2]
        link = FakeLink(*self.owners)
        for name, owner in self.owners.items():
            link.site(name, owner)
        self.links.append(link)
        return link

    def serve(self, watch=lambda event: None):
        return serve(self.places.folder, watch)

    def edit(self, before, after):
        text = self.places.settings.read_text()
        assert before in text
        self.places.settings.write_text(text.replace(before, after))


@contextmanager
def deployment_of(folder, *overrides):
    project = folder / "project"
    made(project, written_config(folder), *overrides)
    with ExitStack() as ending:
        owners = {}
        for name, policy in policies(project).items():
            Ledger.create(policy.path("ledger"), **kept_for(policy), anchor=None)
            ledger = ending.enter_context(Ledger.open(policy.path("ledger"), **kept_for(policy), anchor=None))
            owners[name] = Owner(policy, ledger, folder)
        yield Deployment(project, owners)


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    identity()
    faster(monkeypatch)
    monkeypatch.setattr(serving, "WAITING", 0.01)
    monkeypatch.setattr(serving, "SuperLink", lambda settings, places: nullcontext())
    with deployment_of(tmp_path) as found:
        monkeypatch.setattr(serving, "_link", found.link)
        yield found


def ends(number, after):
    """Ends the server by a signal after so many rounds."""

    def watch(event):
        if isinstance(event, RoundDone) and event.round == after:
            os.kill(os.getpid(), number)

    return watch


def spent(record):
    return {client.name: client.slots_taken for client in record.clients}


def test_a_run_is_served_once(deployed):
    record = deployed.serve()
    assert spent(record) == dict.fromkeys(CLIENTS, 3)
    assert [owner.charged for owner in deployed.owners.values()] == [3, 3]
    assert record.deployment["resumed"] == 0
    assert not any(UPPER_BOUNDS in warning for warning in record.warnings)
    assert deployed.serve().as_json() == record.as_json()
    assert len(deployed.links) == 1
    assert 0 < deployed.most < 2**24  # a header, and a few weights


@pytest.mark.parametrize("command", ["serve", "local"])
def test_both_commands_leave_a_report_and_one_is_a_rehearsal(deployed, tmp_path, monkeypatch, command):
    project = ProjectPlaces(deployed.places.folder.parent)
    monkeypatch.setattr(rehearsals, "rehearsed", lambda *given: nullcontext(project))
    monkeypatch.setattr(rehearsals, "Clients", lambda copy: nullcontext(SimpleNamespace(wait_for_owners=lambda: None)))
    given = {"serve": [project.server.folder], "local": [project.folder, "--out", tmp_path / "out"]}[command]
    folder = {"serve": project.server.run, "local": tmp_path / "out"}[command]
    monkeypatch.setattr(sys, "argv", ["prifedsync", "deploy", command, *map(str, given), "--quiet"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert json.loads((folder / "record.json").read_text())["deployment"]["rehearsal"] == (command == "local")
    assert json.loads((folder / "report.json").read_text())["run"]["rehearsal"] == (command == "local")
    assert (folder / "MODEL_CARD.md").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_server_that_is_ended_by_a_signal_goes_on(deployed, number):
    with survived(number), pytest.raises(KeyboardInterrupt):
        deployed.serve(ends(number, after=2))
    assert deployed.links[0].stopped.is_set()
    record = deployed.serve()
    assert spent(record) == dict.fromkeys(CLIENTS, 3)
    assert [owner.charged for owner in deployed.owners.values()] == [3, 3]
    assert record.deployment["resumed"] == 1
    assert any(UPPER_BOUNDS in warning for warning in record.warnings)


class Killed(BaseException):
    """The server ends here, without a word."""


def test_a_server_that_is_killed_repeats_one_round_at_most(deployed):
    """Every round is saved, whatever the config says. The kill comes after the second one, and before it is saved."""

    def kill(event):
        if isinstance(event, RoundDone) and event.round == 2:
            raise Killed

    config = deployed.places.config.read_text()
    assert "checkpoint_seconds = 0.0" in config
    deployed.places.config.write_text(config.replace("checkpoint_seconds = 0.0", "checkpoint_seconds = 60.0"))
    with pytest.raises(Killed):
        deployed.serve(kill)
    done = []
    record = deployed.serve(lambda event: done.append(event.round) if isinstance(event, RoundDone) else None)
    assert done == [2, 3]
    assert [owner.asked for owner in deployed.owners.values()] == [[(0, 0), (1, 0), (1, 0), (2, 0)]] * 2
    assert [owner.charged for owner in deployed.owners.values()] == [3, 3]
    assert spent(record) == dict.fromkeys(CLIENTS, 3)


def test_a_signal_whose_exception_is_lost_ends_the_server_too(deployed):
    """Python ignores an exception that comes in a destructor. The rounds after it are not asked, and not lost."""

    def watch(event):
        with suppress(KeyboardInterrupt):
            ends(signal.SIGTERM, after=1)(event)

    with survived(signal.SIGTERM), pytest.raises(KeyboardInterrupt):
        deployed.serve(watch)
    record = deployed.serve()
    assert record.deployment["answers"] == {
        name: {"sent": 3, "stayed": 0, "absent": 0, "refused": 0, "lost": 0} for name in CLIENTS
    }


def test_two_signals_at_once_stop_once():
    """Whoever stops holds a lock of an event, and the second one would wait for it for ever."""
    stops = []

    def stop():
        stops.append(1)
        if len(stops) == 1:
            os.kill(os.getpid(), signal.SIGHUP)

    with survived(signal.SIGHUP), pytest.raises(KeyboardInterrupt), serving.stopped_by_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stops == [1]


def test_a_closed_terminal_ends_nothing_under_nohup(deployed):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        record = deployed.serve(ends(signal.SIGHUP, after=2))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert record.deployment["resumed"] == 0


@pytest.mark.parametrize("lost", ["run", "run/checkpoint"])
def test_a_server_that_has_lost_what_it_asked_asks_nothing_more(deployed, lost):
    """It would count from the beginning, and an owner that is away by now would have spent nothing."""
    with pytest.raises(KeyboardInterrupt):
        deployed.serve(ends(signal.SIGTERM, after=2))
    shutil.rmtree(deployed.places.folder / lost)
    asked = [list(owner.asked) for owner in deployed.owners.values()]
    with pytest.raises(BadValue, match=r"^run = .* has lost its checkpoint, and owners have answered rounds of it"):
        deployed.serve()
    assert [owner.asked for owner in deployed.owners.values()] == asked


def test_a_server_that_was_ended_before_it_asked_begins_again(deployed, monkeypatch):
    def ended(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "_link", ended)
    with pytest.raises(KeyboardInterrupt):
        deployed.serve()
    begun = json.loads(deployed.places.begun.read_text())
    monkeypatch.setattr(serving, "_link", deployed.link)
    record = deployed.serve()
    assert record.deployment["resumed"] == 0
    assert json.loads(deployed.places.begun.read_text()) == begun | {"asked": True}


def test_a_copy_of_the_server_from_before_the_first_round_counts_what_owners_say(deployed, monkeypatch):
    """It was made while the server waited for its clients. South was asked for two rounds since, and is gone."""
    with pytest.raises(KeyboardInterrupt):
        deployed.serve(ends(signal.SIGTERM, after=2))
    begun = json.loads(deployed.places.begun.read_text())
    deployed.places.begun.write_text(json.dumps(begun | {"asked": False}))
    shutil.rmtree(deployed.places.run)
    deployed.edit("begin = ", "begin = 0.2 #")

    def without_south(*given, **more):
        link = deployed.link(*given, **more)
        del link.nodes["south"]
        return link

    monkeypatch.setattr(serving, "_link", without_south)
    monkeypatch.setattr(exchanges, "SHORT", 0.05)
    record = deployed.serve()
    assert spent(record)["south"] >= deployed.owners["south"].charged == 2
    assert any(UPPER_BOUNDS in warning for warning in record.warnings)


def exchanged(deployed):
    """The link of a server that takes north for south, and south for north."""

    def link(*given, **more):
        made = deployed.link(*given, **more)
        made.site("north", deployed.owners["south"])
        made.site("south", deployed.owners["north"])
        return made

    return link


def test_owners_whose_keys_were_exchanged_are_charged_nothing(deployed, monkeypatch):
    """Each would be counted, and weighed, as the other."""
    monkeypatch.setattr(serving, "_link", exchanged(deployed))
    record = deployed.serve()
    assert spent(record) == dict.fromkeys(CLIENTS, 0)
    assert [owner.ledger.runs() for owner in deployed.owners.values()] == [(), ()]
    assert {event["reason"] for event in record.deployment["events"]} == {f"was not reached: {Refusal.NAME.value}"}


def test_a_masked_round_that_waits_for_owners_whose_keys_were_exchanged_says_so(deployed, tmp_path, monkeypatch):
    """It waits for enough clients, up to waiting.round."""
    monkeypatch.setattr(boards, "EVERY", 0.02)
    monkeypatch.setattr(owners_module, "AGAIN", 0.02)
    (tmp_path / "masked").mkdir()
    with deployment_of(tmp_path / "masked", "privacy.masks=true", "privacy.least_clients=2", "rounds=1") as masked:
        monkeypatch.setattr(serving, "_link", exchanged(masked))
        masked.edit("round = ", "round = 1.0 #")
        seen = []
        write = boards.write
        monkeypatch.setattr(boards, "write", lambda path, status: (seen.append(status), write(path, status)))
        record = masked.serve()
        assert spent(record) == dict.fromkeys(CLIENTS, 0)
        assert [owner.ledger.runs() for owner in masked.owners.values()] == [(), ()]
    waiting = [status for status in seen if status.phase == "training" and not any(each.answer for each in status.clients)]
    assert {client.reason for status in waiting[2:] for client in status.clients} == {
        f"was not reached: {Refusal.NAME.value}"
    }


def test_a_round_that_was_being_asked_when_the_server_ended_counts_once(deployed):
    """The owner had charged it; its stored answer is the same."""
    end = [True]

    def before(question):
        if question.round == 1 and end:
            end.pop()
            os.kill(os.getpid(), signal.SIGTERM)

    deployed.owners["south"].before = before
    with pytest.raises(KeyboardInterrupt):
        deployed.serve()
    record = deployed.serve()
    assert spent(record) == dict.fromkeys(CLIENTS, 3)
    assert [owner.charged for owner in deployed.owners.values()] == [3, 3]


# ---------------------------------------------------------------------- refusals


def test_a_roster_with_one_key_for_two_clients_is_refused_before_anybody_is_asked(deployed):
    north, south = (deployed.places.nodes / f"{name}.pub" for name in CLIENTS)
    south.write_bytes(north.read_bytes())
    with pytest.raises(BadValue, match=r"nodes/south.pub is the key of client north too"):
        deployed.serve()
    assert not any(owner.asked for owner in deployed.owners.values())


def test_a_secret_that_others_may_read_is_refused(deployed):
    deployed.places.secret.chmod(0o644)
    with pytest.raises(BadValue, match=r"tasks\.secret"):
        deployed.serve()


@pytest.mark.parametrize("field", ["begin", "offline"])
def test_where_nobody_comes_the_field_is_named_that_was_waited_for(deployed, monkeypatch, field):
    if field == "offline":
        with pytest.raises(KeyboardInterrupt):
            deployed.serve(ends(signal.SIGTERM, after=1))
    monkeypatch.setattr(serving, "_link", lambda *given, **more: FakeLink())
    deployed.edit({"begin": "begin = 600.0", "offline": "offline = 90.0"}[field], f"{field} = 0.05")
    with pytest.raises(BadValue, match=rf"^waiting\.{field} = 0\.05 seconds are over, and no client has come; start the"):
        deployed.serve()


@pytest.mark.parametrize("chosen", [True, False])
def test_who_takes_part_stays_as_it_was(deployed, chosen):
    deployed.edit('chosen_by = "clients"', 'chosen_by = "server"')
    deployed.edit("share = 1.0", "share = 0.9")
    with pytest.raises(KeyboardInterrupt):
        deployed.serve(ends(signal.SIGTERM, after=1))
    deployed.edit("share = 0.9", "share = 1.0")
    if not chosen:
        deployed.edit('chosen_by = "server"', 'chosen_by = "clients"')
    with pytest.raises(BadValue, match="is not that of the run" if chosen else "is another run"):
        deployed.serve()


# ---------------------------------------------------------------------- what carries questions


def test_a_link_has_tls_and_keys_unless_the_server_is_insecure(tmp_path):
    for insecure in (False, True):
        project = tmp_path / str(insecure)
        made(project, written_config(tmp_path), insecure=insecure)
        places = ProjectPlaces(project).server
        link = serving._link(server_settings(places.folder), places, 1000)
        assert link.keys is not insecure
        assert link._address.certificate == (None if insecure else places.authority)
        assert link._most == 1000
        assert link._secret == places.secret.read_bytes()
        assert exchanges.Exchange(link).registered == (set() if insecure else set(CLIENTS))
