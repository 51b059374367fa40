"""An owner for tests: a folder with records, policy and ledger, daemons that serve it, and runs to enrol there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from prifedsync.asking import document as documents
from prifedsync.asking.connection import Connection
from prifedsync.asking.frames import PREFIX, question_frame, read_prefix
from prifedsync.asking.questions import Answer, Enrol
from prifedsync.asking.vectors import vector_bytes
from prifedsync.config import from_mapping
from prifedsync.config.layering import merged
from prifedsync.data import Description, Task
from prifedsync.owner.ledger import Ledger
from prifedsync.owner.ledger.pages import kept_for
from prifedsync.owner.policy import read
from prifedsync.run import prepare

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 40
FEATURES = 3
PARAMETERS = (FEATURES + 1) * 2
POLICY = """
client = "a"
users = {users}
[source]
name = "records of a"
records = {records}
{source}
[data]
source = "csv"
path = "records.csv"
clients = 1
partition = "iid"
test_fraction = 0.0
classes = 2
ranges = {{ "*" = [0.0, 1.0] }}
[budget]
mu = {mu}
[limits]
models = ["softmax"]
rules = ["fedavg", "ditto"]
least_noise = 1.0
clip_norm = 1.0
local_steps = 5
rounds = 5000
participants = 2
[replies]
seconds = {seconds}
[files]
ledger = "book/ledger.db"
anchor = "anchor/anchor.json"
log = "book/owner.log"
socket = "door/owner.sock"
{more}
"""


def rows(seed=0, count=RECORDS):
    draw = np.random.default_rng(seed)
    values = draw.random((count, FEATURES)).round(4)
    return [[*row, int(sum(row) > FEATURES / 2)] for row in values.tolist()]


def new_site(folder, seconds=0.0, mu=50.0, users=(), records=None, nominal=None, source="", more=""):
    """An owner in a new folder."""
    folder = Path(folder)
    records = records or rows()
    for name in ("book", "anchor", "door"):
        (folder / name).mkdir(parents=True)
    lines = [",".join(map(str, row)) for row in [["x1", "x2", "x3", "label"], *records]]
    (folder / "records.csv").write_text("\n".join(lines) + "\n")
    values = {"users": json.dumps(list(users)), "mu": mu, "seconds": seconds, "source": source, "more": more}
    said = POLICY.format(records=nominal or len(records), **values)
    (folder / "policy.toml").write_text(said)
    for private in ("records.csv", "policy.toml"):
        (folder / private).chmod(0o600)
    site = Site(folder)
    Ledger.create(site.ledger_path, **kept_for(site.policy), anchor=site.anchor_path)
    return site


def open_way(folder):
    """Let other users come as far as this folder: pytest's own folders are closed to them."""
    for above in folder.parents:
        mode = above.stat().st_mode
        if mode & 0o011 != 0o011:
            above.chmod(mode | 0o011)


class Site:
    """The folder of an owner."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.policy_path = self.folder / "policy.toml"
        self.ledger_path = self.folder / "book/ledger.db"
        self.anchor_path = self.folder / "anchor/anchor.json"
        self.socket_path = self.folder / "door/owner.sock"

    @property
    def policy(self):
        return read(self.policy_path)

    def copied(self, folder):
        return Site(shutil.copytree(self.folder, folder))

    def ledger(self, readonly=True):
        """The ledger, checked as whoever opens it checks it: chain, tables and anchor."""
        return Ledger.open(self.ledger_path, **kept_for(self.policy), anchor=self.anchor_path, readonly=readonly)

    def ask(self, question, wait=30.0):
        return Connection(self.socket_path, wait).ask(question)

    def log(self):
        path = self.folder / "book/owner.log"
        return path.read_text() if path.exists() else ""


def run_document(number=1, rounds=5, noise=2.0, clip=0.5, clients=("a", "b"), records=RECORDS, **sections):
    """A run that the site allows, unless told otherwise."""
    told = {
        "rounds": rounds,
        "compare": [],
        "model": {"name": "softmax"},
        "local": {"local_steps": 2, "batch": 10, "learning_rate": 0.1},
        "privacy": {"noise_multiplier": noise, "clip_norm": clip},
    }
    config = from_mapping(merged(told, sections))
    if config.privacy.neighbours == "add-remove":
        config = from_mapping(merged(told, sections, {"clients": {name: {"records": records} for name in clients}}))
    description = Description(dict.fromkeys(clients, records), (FEATURES,), Task("classes", 2))
    prepared = prepare(config, description)
    return documents.of(
        prepared.config, description, prepared.jobs, prepared.rule, run=f"{number:032x}",
        arithmetic=prepared.net.arithmetic, metrics=(), sums=prepared.sums,
    )  # fmt: skip


def helper(value=0.0, count=PARAMETERS):
    return vector_bytes("helper", "F32", np.full(count, value, np.float32).tobytes())


def slot(document, round, attempt=0, value=None, **more):
    """A question for a slot; without a value, each round has a helper of its own."""
    given = helper(round / 64 if value is None else value)
    return Answer(more.pop("client", "a"), document.run, round, attempt, given, **more)


def enrol(document, session=b"", client="a"):
    return Enrol(client, document.mapping, session)


class Daemon:
    """A daemon process."""

    def __init__(self, forks, pid, ready):
        self._forks = forks
        self.pid = pid
        self.ready = ready

    def end(self, number=signal.SIGTERM):
        """Send a signal and wait; how the process ended."""
        os.kill(self.pid, number)
        return self.wait()

    def wait(self):
        return self._forks.tell(do="wait", pid=self.pid)["status"]

    def memory(self):
        """Bytes of resident memory."""
        fields = Path(f"/proc/{self.pid}/status").read_text()
        return int(fields.split("VmRSS:")[1].split()[0]) * 1024


class Forks:
    """Starts daemons; see forking.py. `library`: a shared library that ends a process before a given call."""

    def __init__(self, library=None):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        command = [sys.executable, "-m", "tests.owner.forking"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)

    def __enter__(self):
        with tempfile.TemporaryDirectory() as folder:
            document = run_document()
            site = new_site(Path(folder) / "site")
            frames = [parts(question_frame(each)) for each in (enrol(document), slot(document, 0))]
            self.tell(do="warm", policy=str(site.policy_path), frames=[[part.hex() for part in each] for each in frames])
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def tell(self, **said):
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, site, must=True, **more):
        told = self.tell(do="serve", policy=str(site.policy_path), **more)
        assert told["ready"] or not must, site.log()
        return Daemon(self, told["pid"], told["ready"])

    def count(self):
        return self.tell(do="count")["count"]


def parts(frame):
    """Header and body of a frame."""
    lengths = read_prefix(frame[: PREFIX.size])
    header = frame[PREFIX.size : PREFIX.size + lengths.header]
    return header, frame[PREFIX.size + lengths.header :]


def until(condition, seconds=10.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
