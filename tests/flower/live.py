"""A real deployment on 127.0.0.1 for tests: a project of the example, whose owners' daemons replay recorded draws."""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from prifedsync.config import load, to_toml
from prifedsync.deploy import project
from prifedsync.deploy.hosts import Reached
from prifedsync.deploy.processes import own
from prifedsync.deploy.rehearsal import Clients, clients_of, rehearsed
from prifedsync.deploy.settings import server_settings
from prifedsync.files import write_file
from prifedsync.owner.ledger.pages import open_ledger
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of

from ..owner.federations import Run, tape_of

PATIENT = 120.0  # seconds for what takes a few on a machine that does nothing else
LAST_LINES = 15  # of a log, where a test fails


@contextmanager
def deployed(folder, *overrides, waiting=None, insecure=False):
    """A copy of a new project of the example, in double precision; nothing runs yet."""
    made = Path(folder) / "project"
    project.init(made, None, ["performance.dtype=float64", *overrides], Reached(insecure=insecure), 0.0)
    with rehearsed(made, reply=0.0, real_records=True) as copy:
        settings = server_settings(copy.server.folder)
        patient = replace(settings.waiting, **(waiting or {}))
        write_file(copy.server.settings, to_toml(replace(settings, waiting=patient)).encode())
        yield copy


def in_one_process(copy):
    """The same run in one process, and the tape of its draws: (server, uploads) of each round."""
    arrays = replace(load(copy.server.config).data, columns=(), ranges={})  # records as owners have them, scaled
    config = replace(load(copy.server.config), data=arrays)
    records = {}
    for places in clients_of(copy):
        train = records_of(read(places.policy)).train
        records[places.folder.name] = (train.x, train.y)
    tape = tape_of()
    rounds, _ = Run.of(config, records).together(tape)
    path = copy.folder / "tape"
    torch.save(tape.tape, path)
    return rounds, path


class TapedOwner:
    """An owner's daemon that is forked (`tests/owner/forking.py`), in the place of a `Process`."""

    def __init__(self, forks, places, tape):
        self.name = "owner"
        self.log = read(places.policy).path("log")
        self._forks = forks
        told = forks.tell(do="serve", policy=str(places.policy), tape=str(tape) if tape else "")
        self.pid = told["pid"]
        self.status = None
        if not told["ready"]:
            self.kill()
            raise AssertionError(f"a daemon does not listen\n{last_lines(self.log)}")

    @property
    def runs(self):
        return self.status is None and state_of(self.pid) not in ("", "Z")

    def kill(self):
        """End it at once, and wait; how it ended."""
        return self._ended_by(signal.SIGKILL)

    def ask_to_end(self):
        if self.runs:
            os.kill(self.pid, signal.SIGTERM)

    def end(self):
        if self.status is None:
            self.ask_to_end()
            end = time.monotonic() + 10.0
            while self.runs and time.monotonic() < end:
                time.sleep(0.02)
            self.kill()

    def _ended_by(self, number):
        if self.status is None:
            os.kill(self.pid, number)
            self.status = self._forks.tell(do="wait", pid=self.pid)["status"]
        return self.status


class TapedClients(Clients):
    """All clients of a project, with owners who are forked, and replay a tape if there is one."""

    def __init__(self, copy, forks, tape=None):
        super().__init__(copy)
        self._forks = forks
        self._tape = tape
        self.started = []  # pids of all that was started here

    def start_owner(self, name):
        self.owners[name] = TapedOwner(self._forks, self.places[name], self._tape)
        self.started.append(self.owners[name].pid)

    def start_site(self, name):
        super().start_site(name)
        self.started.append(self.sites[name].pid)


# ---------------------------------------------------------------------- what is looked at


def command(*words):
    """Our own command, as a user calls it; its output."""
    done = subprocess.run(own(*map(str, words)), capture_output=True, text=True, timeout=PATIENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status_of(copy):
    """`deploy status --json`."""
    return json.loads(command("deploy", "status", copy.server.folder, "--json"))


def records_of_owner(copy, name):
    """The file of an owner's records, which lies in its project and not in the copy."""
    policy = read(copy.client(name).policy)
    return policy.folder / policy.data.path


def lines_of(copy):
    """The log of the rounds."""
    return [json.loads(line) for line in (copy.server.run / "rounds.jsonl").read_text().splitlines()]


def ledger_of(copy, name):
    """A client's ledger, checked as whoever opens it checks it."""
    return open_ledger(read(copy.client(name).policy), readonly=True)


def until(condition, what, seconds=PATIENT):
    """Wait until something is so; what it is then."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"it did not happen: {what() if callable(what) else what}"
        time.sleep(0.1)
    return found


def last_lines(log):
    if not log.exists():
        return f"{log} is not there"
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join([f"--- {log}", *lines])


@contextmanager
def logs_shown(copy):
    """Where the block fails, print the end of all logs."""
    try:
        yield
    except BaseException:
        for log in sorted(copy.folder.rglob("*.log")):
            print(last_lines(log))
        raise


# ---------------------------------------------------------------------- processes


def state_of(pid):
    """The state of a process as one letter; nothing where there is none."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def processes_of(folder, sessions=()):
    """pid → command line, of all that name this folder or belong to these sessions."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        fields = _stat(pid)
        if pid == os.getpid() or not fields or fields[0] == "Z":
            continue
        words = _words(path)
        if str(folder) in words or int(fields[3]) in sessions:
            found[pid] = words
    return found


def children_of(pid, program):
    """The processes that a process started, of a program."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(path.name)
        if fields and fields[0] != "Z" and int(fields[1]) == pid and program in _words(path):
            found.append(int(path.name))
    return found


def listeners_of(pids):
    """The addresses on which these processes accept connections of TCP, in hexadecimal digits as Linux shows them."""
    sockets = {name for pid in pids for name in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(fields[1])
    return found


def _stat(pid):
    """The fields of a process after its name: state, parent, group, session, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _words(path):
    try:
        return (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _sockets(pid):
    names = []
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            link = os.readlink(file)
        except OSError:
            continue
        if link.startswith("socket:["):
            names.append(link[8:-1])
    return names
